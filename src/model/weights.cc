#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "model/pack.h"

namespace tandem {
namespace {

// Bounds of a rank's segments over `units`, in elements counted from the rank's first one: unit u
// begins at element min(u * unit_size, total).
std::vector<int32_t> SegmentBounds(Range segments, int64_t units, int64_t unit_size,
                                   int64_t total) {
  const auto element = [&](int64_t segment) {
    return std::min(segment * units / kNumSegments * unit_size, total);
  };
  std::vector<int32_t> bounds;
  for (int64_t s = segments.begin; s <= segments.end; ++s) {
    bounds.push_back(static_cast<int32_t>(element(s) - element(segments.begin)));
  }
  return bounds;
}

int64_t BytesOf(const AttentionShard& shard) {
  size_t bytes = shard.query.bytes() + shard.output.bytes();
  for (const PackedMatrix& matrix : shard.key_up) bytes += matrix.bytes();
  for (const PackedMatrix& matrix : shard.value_up) bytes += matrix.bytes();
  return static_cast<int64_t>(bytes);
}

int64_t BytesOf(const FfnShard& shard) {
  size_t bytes = shard.mlp.gate.bytes() + shard.mlp.up.bytes() + shard.mlp.down.bytes();
  for (const ExpertWeights& expert : shard.experts) {
    bytes += expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
  }
  return static_cast<int64_t>(bytes);
}

int64_t BytesOf(const LayerCommon& common) {
  return static_cast<int64_t>(common.input_norm.bytes() + common.post_attention_norm.bytes() +
                              common.q_a.bytes() + common.q_a_norm.bytes() + common.kv_a.bytes() +
                              common.kv_a_norm.bytes() + common.router.bytes() +
                              common.router_bias.bytes());
}

}  // namespace

// Takes tensors from the checkpoint into a ModelWeights. A tensor that is missing leaves its matrix
// empty; the checkpoint's Finish() then refuses the model, so no half-filled weights leave this
// file.
class WeightLoader {
 public:
  WeightLoader(Checkpoint& checkpoint, ModelWeights& weights)
      : checkpoint_(checkpoint),
        weights_(weights),
        config_(weights.config_),
        layout_(weights.layout_) {}

  void LoadTop() {
    const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    if (const TensorView* t = checkpoint_.Take("model.embed_tokens.weight", {vocab, hidden})) {
      weights_.embedding_ = CopyEmbedding(*t);
    }
    weights_.final_norm_ = Vector("model.norm.weight", hidden);
    weights_.heads_ = Heads(checkpoint_.Take("lm_head.weight", {vocab, hidden}));
  }

  void LoadLayer(int64_t layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    weights_.common_.push_back(Common(prefix, layer));
    for (int i = 0; i < layout_.attn_tp_size(); ++i) {
      weights_.attention_[i].push_back(Attention(prefix + "self_attn.", i));
    }
    for (int rank = 0; rank < layout_.tp_size(); ++rank) {
      weights_.ffn_[rank].push_back(config_.IsMoeLayer(layer) ? Moe(prefix + "mlp.", rank)
                                                              : Dense(prefix + "mlp.", rank));
    }
  }

  void LoadMtp() {
    const std::string prefix = "model.layers." + std::to_string(config_.num_hidden_layers) + ".";
    const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    auto mtp = std::make_unique<MtpWeights>();
    mtp->enorm = Vector(prefix + "enorm.weight", hidden);
    mtp->hnorm = Vector(prefix + "hnorm.weight", hidden);
    mtp->head_norm = Vector(prefix + "shared_head.norm.weight", hidden);
    mtp->eh_proj = Matrix(prefix + "eh_proj.weight", hidden, 2 * hidden);
    weights_.mtp_ = std::move(mtp);
    LoadLayer(config_.num_hidden_layers);
    const TensorView* embedding = checkpoint_.Take(prefix + "embed_tokens.weight", {vocab, hidden});
    if (!Equal(embedding, checkpoint_.Take("model.embed_tokens.weight", {vocab, hidden}))) {
      weights_.mtp_embedding_ = CopyEmbedding(*embedding);
    }
    const TensorView* head = checkpoint_.Take(prefix + "shared_head.head.weight", {vocab, hidden});
    if (!Equal(head, checkpoint_.Take("lm_head.weight", {vocab, hidden}))) {
      weights_.mtp_heads_ = Heads(head);
    }
  }

 private:
  // True also if one is missing, which Finish() reports.
  static bool Equal(const TensorView* a, const TensorView* b) {
    return a == nullptr || b == nullptr ||
           (a->dtype == b->dtype && std::memcmp(a->data, b->data, a->bytes) == 0);
  }

  Buffer<float> Vector(const std::string& name, int64_t size) {
    const TensorView* t = checkpoint_.Take(name, {size});
    return t != nullptr ? CopyFloats(*t) : Buffer<float>();
  }

  PackedMatrix Matrix(const std::string& name, int64_t rows, int64_t columns) {
    return Part(name, rows, columns, {0, rows}, {0, columns});
  }

  PackedMatrix Part(const std::string& name, int64_t rows, int64_t columns, Range own_rows,
                    Range own_columns) {
    const TensorView* t = checkpoint_.Take(name, {rows, columns});
    return t != nullptr ? PackMatrix(*t, own_rows, own_columns) : PackedMatrix();
  }

  std::vector<PackedMatrix> Heads(const TensorView* t) {
    std::vector<PackedMatrix> heads(layout_.tp_size());
    for (int rank = 0; t != nullptr && rank < layout_.tp_size(); ++rank) {
      heads[rank] = PackMatrix(*t, weights_.VocabOf(rank), {0, config_.hidden_size});
    }
    return heads;
  }

  LayerCommon Common(const std::string& prefix, int64_t layer) {
    const int64_t hidden = config_.hidden_size;
    const std::string attention = prefix + "self_attn.";
    LayerCommon common;
    common.input_norm = Vector(prefix + "input_layernorm.weight", hidden);
    common.post_attention_norm = Vector(prefix + "post_attention_layernorm.weight", hidden);
    if (config_.q_lora_rank > 0) {
      common.q_a = Matrix(attention + "q_a_proj.weight", config_.q_lora_rank, hidden);
      common.q_a_norm = Vector(attention + "q_a_layernorm.weight", config_.q_lora_rank);
    }
    common.kv_a = Matrix(attention + "kv_a_proj_with_mqa.weight",
                         config_.kv_lora_rank + config_.qk_rope_head_dim, hidden);
    common.kv_a_norm = Vector(attention + "kv_a_layernorm.weight", config_.kv_lora_rank);
    if (config_.IsMoeLayer(layer)) {
      const int64_t experts = config_.n_routed_experts;
      const TensorView* t = checkpoint_.Take(prefix + "mlp.gate.weight", {experts, hidden});
      if (t != nullptr) {
        common.router = PackMatrix(*t, {0, experts}, {0, hidden}, WeightType::kFp32);
      }
      common.router_bias = Vector(prefix + "mlp.gate.e_score_correction_bias", experts);
    }
    return common;
  }

  AttentionShard Attention(const std::string& prefix, int attn_rank) {
    const int64_t heads = config_.num_attention_heads, nope = config_.qk_nope_head_dim;
    const int64_t head_dim = config_.qk_head_dim(), v = config_.v_head_dim;
    const int64_t latent = config_.kv_lora_rank, hidden = config_.hidden_size;
    const Range segments = SegmentsOf(attn_rank, layout_.attn_tp_size());
    AttentionShard shard;
    shard.heads = UnitsOfSegments(heads, segments);
    const Range query_rows{shard.heads.begin * head_dim, shard.heads.end * head_dim};
    shard.query =
        config_.q_lora_rank > 0
            ? Part(prefix + "q_b_proj.weight", heads * head_dim, config_.q_lora_rank, query_rows,
                   {0, config_.q_lora_rank})
            : Part(prefix + "q_proj.weight", heads * head_dim, hidden, query_rows, {0, hidden});
    if (const TensorView* t =
            checkpoint_.Take(prefix + "kv_b_proj.weight", {heads * (nope + v), latent})) {
      for (int64_t h = shard.heads.begin; h < shard.heads.end; ++h) {
        const int64_t row = h * (nope + v);
        shard.key_up.push_back(PackTransposed(*t, {row, row + nope}, {0, latent}));
        shard.value_up.push_back(PackMatrix(*t, {row + nope, row + nope + v}, {0, latent}));
      }
    }
    shard.output = Part(prefix + "o_proj.weight", hidden, heads * v, {0, hidden},
                        {shard.heads.begin * v, shard.heads.end * v});
    shard.output_bounds = SegmentBounds(segments, heads, v, heads * v);
    return shard;
  }

  MlpShard Mlp(const std::string& prefix, int64_t width, int rank) {
    const int64_t hidden = config_.hidden_size;
    const int64_t units = CeilDiv(width, kMlpUnit);
    const Range segments = SegmentsOf(rank, layout_.tp_size());
    const Range own_units = UnitsOfSegments(units, segments);
    const Range own{std::min(own_units.begin * kMlpUnit, width),
                    std::min(own_units.end * kMlpUnit, width)};
    MlpShard shard;
    shard.first_unit = own_units.begin;
    shard.gate = Part(prefix + "gate_proj.weight", width, hidden, own, {0, hidden});
    shard.up = Part(prefix + "up_proj.weight", width, hidden, own, {0, hidden});
    shard.down = Part(prefix + "down_proj.weight", hidden, width, {0, hidden}, own);
    shard.down_bounds = SegmentBounds(segments, units, kMlpUnit, width);
    return shard;
  }

  FfnShard Dense(const std::string& prefix, int rank) {
    FfnShard shard;
    shard.mlp = Mlp(prefix, config_.intermediate_size, rank);
    return shard;
  }

  FfnShard Moe(const std::string& prefix, int rank) {
    const int64_t width = config_.moe_intermediate_size, hidden = config_.hidden_size;
    const Range segments = SegmentsOf(rank, layout_.tp_size());
    FfnShard shard;
    if (config_.n_shared_experts > 0) {
      shard.mlp = Mlp(prefix + "shared_experts.", width * config_.n_shared_experts, rank);
    }
    shard.expert_range = UnitsOfSegments(config_.n_routed_experts, segments);
    shard.expert_bounds =
        SegmentBounds(segments, config_.n_routed_experts, 1, config_.n_routed_experts);
    for (int64_t e = shard.expert_range.begin; e < shard.expert_range.end; ++e) {
      const std::string expert = prefix + "experts." + std::to_string(e) + ".";
      shard.experts.push_back({Matrix(expert + "gate_proj.weight", width, hidden),
                               Matrix(expert + "up_proj.weight", width, hidden),
                               Matrix(expert + "down_proj.weight", hidden, width)});
    }
    return shard;
  }

  Checkpoint& checkpoint_;
  ModelWeights& weights_;
  const ModelConfig& config_;
  const Layout& layout_;
};

Result<std::unique_ptr<ModelWeights>> ModelWeights::Load(
    const std::string& folder, const ModelConfig& config, const Layout& layout, bool with_mtp,
    int64_t positions, const std::function<void(double)>& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(folder));
  std::unique_ptr<ModelWeights> weights(new ModelWeights(config, layout));
  weights->attention_.resize(layout.attn_tp_size());
  weights->ffn_.resize(layout.tp_size());
  WeightLoader loader(*checkpoint, *weights);
  loader.LoadTop();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    loader.LoadLayer(layer);
    if (progress) progress(static_cast<double>(layer + 1) / (config.num_hidden_layers + 1));
  }
  if (with_mtp) {
    loader.LoadMtp();
  } else {
    for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
      checkpoint->SkipPrefix("model.layers." + std::to_string(config.num_hidden_layers + i) + ".");
    }
  }
  RETURN_IF_ERROR(checkpoint->Finish());
  weights->rope_ = RopeTable(config.RopeInvFreq(), config.RopeMscale(), positions);
  if (progress) progress(1.0);
  return weights;
}

int64_t ModelWeights::RankBytes(int rank) const {
  int64_t bytes = static_cast<int64_t>(heads_[rank].bytes());
  if (!mtp_heads_.empty()) bytes += static_cast<int64_t>(mtp_heads_[rank].bytes());
  for (const FfnShard& shard : ffn_[rank]) bytes += BytesOf(shard);
  if (layout_.dp_size() == 1) {
    for (const AttentionShard& shard : attention_[layout_.attn_rank(rank)]) bytes += BytesOf(shard);
  }
  return bytes;
}

int64_t ModelWeights::SharedBytes() const {
  int64_t bytes = static_cast<int64_t>(embedding_.data.bytes() + mtp_embedding_.data.bytes() +
                                       rope_.bytes() + final_norm_.bytes());
  for (const LayerCommon& common : common_) bytes += BytesOf(common);
  if (layout_.dp_size() > 1) {
    for (const auto& shards : attention_) {
      for (const AttentionShard& shard : shards) bytes += BytesOf(shard);
    }
  }
  if (mtp_ != nullptr) {
    bytes += static_cast<int64_t>(mtp_->enorm.bytes() + mtp_->hnorm.bytes() +
                                  mtp_->head_norm.bytes() + mtp_->eh_proj.bytes());
  }
  return bytes;
}

}  // namespace tandem
