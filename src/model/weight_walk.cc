#include "model/weight_walk.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

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

// Compares two tensors of equal size. Pieces of a mebibyte on `num_threads` threads.
Result<bool> SameBytes(const TensorSource& source_a, const TensorInfo& a,
                       const TensorSource& source_b, const TensorInfo& b, int num_threads) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::atomic<size_t> next = 0;
  std::atomic<bool> same = true;
  std::mutex mutex;  // guards `failure`
  Status failure;
  const auto work = [&] {
    std::vector<std::byte> bytes_a(kPiece), bytes_b(kPiece);
    for (size_t begin = next.fetch_add(kPiece); begin < a.bytes && same;
         begin = next.fetch_add(kPiece)) {
      const size_t size = std::min(kPiece, a.bytes - begin);
      Status status = source_a.Read(a, begin, std::span(bytes_a).first(size));
      if (status.ok()) status = source_b.Read(b, begin, std::span(bytes_b).first(size));
      if (!status.ok()) {
        const std::lock_guard lock(mutex);
        failure = status;
      }
      if (!status.ok() || std::memcmp(bytes_a.data(), bytes_b.data(), size) != 0) same = false;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (!failure.ok()) return failure;
  return same.load();
}

}  // namespace

WeightWalk::WeightWalk(ModelWeights& weights, int num_threads, LoadQueue* queue)
    : weights_(weights),
      config_(weights.config_),
      layout_(weights.layout_),
      num_threads_(num_threads),
      queue_(queue) {
  plan_.rank_bytes.resize(layout_.tp_size());
}

void WeightWalk::AddTarget(TensorSource& source) {
  source_ = &source;
  quantization_ = config_.quantization;
  const std::vector<int64_t> table = {config_.vocab_size, config_.hidden_size};
  SetGroup(WeightGroup::kEmbedding);
  Embedding(source.Take("model.embed_tokens.weight", table), weights_.embedding_);
  SetGroup(WeightGroup::kRouterAndNorms);
  Vector("model.norm.weight", config_.hidden_size, weights_.final_norm_);
  SetGroup(WeightGroup::kHead);
  Heads(source.Take("lm_head.weight", table), weights_.heads_);
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    Layer("model.layers." + std::to_string(layer) + ".", layer);
  }
}

void WeightWalk::AddModuleLayer(int64_t module, TensorSource& source, int64_t layer,
                                const QuantizationConfig& quantization) {
  source_ = &source;
  quantization_ = quantization;
  in_module_ = true;
  SetGroup(WeightGroup::kMtp);
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config_.hidden_size;
  MtpWeights& mtp = weights_.mtp_[module];
  Vector(prefix + "enorm.weight", hidden, mtp.enorm);
  Vector(prefix + "hnorm.weight", hidden, mtp.hnorm);
  Vector(prefix + "shared_head.norm.weight", hidden, mtp.head_norm);
  Whole(prefix + "eh_proj.weight", hidden, 2 * hidden, kShared, mtp.eh_proj);
  Layer(prefix, config_.num_hidden_layers + module);
}

Status WeightWalk::AddModule(int64_t module, TensorSource& source, int64_t layer,
                             const QuantizationConfig& quantization, TensorSource& target) {
  AddModuleLayer(module, source, layer, quantization);
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config_.hidden_size;
  MtpWeights& mtp = weights_.mtp_[module];
  SetGroup(WeightGroup::kMtp);
  // In a file of its own a module may also have the names of the top.
  const bool apart = &source != &target;
  const auto names = [&](const std::string& own, const std::string& top) {
    return apart ? std::vector{prefix + own, top} : std::vector{prefix + own};
  };
  const std::vector<int64_t> table = {config_.vocab_size, hidden};
  const std::string embedding_name = "model.embed_tokens.weight", head_name = "lm_head.weight";
  const TensorInfo* embedding = TakeOwnCopy(names("embed_tokens.weight", embedding_name));
  ASSIGN_OR_RETURN(const bool same_embedding,
                   IsCopy(embedding, target, target.Take(embedding_name, table)));
  if (!same_embedding) Embedding(embedding, mtp.embedding);
  const TensorInfo* head = TakeOwnCopy(names("shared_head.head.weight", head_name));
  ASSIGN_OR_RETURN(const bool same_head, IsCopy(head, target, target.Take(head_name, table)));
  if (!same_head) {
    mtp.heads.resize(layout_.tp_size());
    Heads(head, mtp.heads);
  }
  return Status();
}

void WeightWalk::AddRotary(int64_t positions) {
  in_module_ = false;
  SetGroup(WeightGroup::kRotary);
  // A cosine and a sine for every pair.
  Count(kShared, WeightType::kFp32,
        positions * config_.qk_rope_head_dim * static_cast<int64_t>(sizeof(float)));
}

void WeightWalk::Count(int owner, WeightType type, int64_t bytes) {
  plan_.group_bytes[static_cast<int>(group_)] += bytes;
  plan_.format_bytes[static_cast<int>(type)] += bytes;
  (owner == kShared ? plan_.shared_bytes : plan_.rank_bytes[owner]) += bytes;
}

void WeightWalk::CountParameters(const TensorInfo& tensor, bool active) {
  ParameterCount& count = in_module_ ? plan_.mtp_modules : plan_.target;
  count.total += tensor.elements();
  if (active) count.active += tensor.elements();
}

WeightWalk::MatrixTensor WeightWalk::TakeMatrix(const std::string& name, int64_t rows,
                                                int64_t columns) {
  const TensorInfo* weight = source_->Take(name, {rows, columns}, TensorFormats::kPlainOrFp8);
  if (weight == nullptr || weight->dtype != DType::kF8E4M3) return {weight, nullptr};
  if (!quantization_.present) {
    source_->Refuse(*weight, " without a quantization_config");
    return {};
  }
  const TensorInfo* scales = source_->Take(
      name + "_scale_inv",
      {CeilDiv(rows, quantization_.block_rows), CeilDiv(columns, quantization_.block_columns)},
      TensorFormats::kScales);
  return scales != nullptr ? MatrixTensor{weight, scales} : MatrixTensor{};
}

void WeightWalk::Pack(const MatrixTensor& tensor, const std::vector<Target>& targets,
                      PackOptions options) {
  if (tensor.weight == nullptr) return;
  CountParameters(*tensor.weight, options.active);
  const WeightType type = options.widen ? WeightType::kFp32 : KeptType(tensor.weight->dtype);
  TensorLoad load{source_, tensor.weight, tensor.scales, {}, {}, {}};
  for (const Target& target : targets) {
    const int64_t columns = target.part.matrix_columns(), depth = target.part.matrix_depth();
    const ScaleBlocks blocks =
        type == WeightType::kFp8
            ? BlocksOfPart(target.part, quantization_.block_rows, quantization_.block_columns)
            : ScaleBlocks{};
    Count(target.owner, type, PackedBytes(columns, depth, type, blocks));
    if (queue_ == nullptr) continue;
    *target.matrix = PackedMatrix(columns, depth, type, blocks);
    load.targets.push_back({target.part, target.matrix});
  }
  if (queue_ != nullptr) queue_->Add(std::move(load));
}

void WeightWalk::Whole(const std::string& name, int64_t rows, int64_t columns, int owner,
                       PackedMatrix& matrix) {
  const MatrixTensor tensor = TakeMatrix(name, rows, columns);
  Pack(tensor, {{{{0, rows}, {0, columns}}, &matrix, owner}});
}

void WeightWalk::Vector(const std::string& name, int64_t size, Buffer<float>& vector) {
  const TensorInfo* tensor = source_->Take(name, {size});
  if (tensor == nullptr) return;
  CountParameters(*tensor, /*active=*/true);
  Count(kShared, WeightType::kFp32, size * static_cast<int64_t>(sizeof(float)));
  if (queue_ == nullptr) return;
  vector = Buffer<float>(static_cast<size_t>(size));
  queue_->Add({source_, tensor, nullptr, {}, vector.span(), {}});
}

void WeightWalk::Embedding(const TensorInfo* tensor, EmbeddingTable& table) {
  if (tensor == nullptr) return;
  const WeightType type = KeptType(tensor->dtype);
  CountParameters(*tensor, /*active=*/true);
  Count(kShared, type, static_cast<int64_t>(tensor->bytes));
  if (queue_ == nullptr) return;
  table = EmbeddingTable{Buffer<std::byte>(tensor->bytes), type, tensor->shape[1]};
  queue_->Add({source_, tensor, nullptr, {}, {}, table.data.span()});
}

void WeightWalk::Heads(const TensorInfo* tensor, std::vector<PackedMatrix>& heads) {
  if (tensor == nullptr) return;
  std::vector<Target> targets;
  for (int rank = 0; rank < layout_.tp_size(); ++rank) {
    targets.push_back({{weights_.VocabOf(rank), {0, config_.hidden_size}}, &heads[rank], rank});
  }
  Pack({tensor, nullptr}, targets);
}

// The first tensor of `names` that there is, a table of the vocabulary; nullptr if there is none.
const TensorInfo* WeightWalk::TakeOwnCopy(const std::vector<std::string>& names) {
  const TensorInfo* first = nullptr;
  for (const std::string& name : names) {
    if (!source_->Has(name)) continue;
    const TensorInfo* tensor = source_->Take(name, {config_.vocab_size, config_.hidden_size});
    if (first == nullptr) first = tensor;
  }
  return first;
}

// Whether the module needs no table of its own. True also if one is missing: a module without has
// the target's, and a missing target's is reported by Finish().
Result<bool> WeightWalk::IsCopy(const TensorInfo* own, const TensorSource& target_source,
                                const TensorInfo* target) const {
  if (own == nullptr || target == nullptr) return true;
  if (own->dtype != target->dtype) return false;
  return SameBytes(*source_, *own, target_source, *target, num_threads_);
}

void WeightWalk::Layer(const std::string& prefix, int64_t layer) {
  LayerCommon& common = weights_.common_[layer];
  const int64_t width = config_.moe_intermediate_size;
  Common(prefix, common);
  Attention(prefix + "self_attn.", layer);
  if (!config_.IsMoeLayer(layer)) {
    SetGroup(WeightGroup::kDenseMlp);
    Mlp(prefix + "mlp.", config_.intermediate_size, layer);
    return;
  }
  Router(prefix + "mlp.gate.", common);
  SetGroup(WeightGroup::kSharedExperts);
  if (config_.n_shared_experts > 0) {
    Mlp(prefix + "mlp.shared_experts.", width * config_.n_shared_experts, layer);
  }
  SetGroup(WeightGroup::kRoutedExperts);
  Experts(prefix + "mlp.experts.", layer);
}

void WeightWalk::Common(const std::string& prefix, LayerCommon& common) {
  const int64_t hidden = config_.hidden_size;
  const std::string attention = prefix + "self_attn.";
  SetGroup(WeightGroup::kRouterAndNorms);
  Vector(prefix + "input_layernorm.weight", hidden, common.input_norm);
  Vector(prefix + "post_attention_layernorm.weight", hidden, common.post_attention_norm);
  Vector(attention + "kv_a_layernorm.weight", config_.kv_lora_rank, common.kv_a_norm);
  if (config_.q_lora_rank > 0) {
    Vector(attention + "q_a_layernorm.weight", config_.q_lora_rank, common.q_a_norm);
  }
  SetGroup(WeightGroup::kAttention);
  Whole(attention + "kv_a_proj_with_mqa.weight", config_.kv_lora_rank + config_.qk_rope_head_dim,
        hidden, kShared, common.kv_a);
  if (config_.q_lora_rank > 0) {
    Whole(attention + "q_a_proj.weight", config_.q_lora_rank, hidden, kShared, common.q_a);
  }
}

void WeightWalk::Router(const std::string& prefix, LayerCommon& common) {
  const int64_t experts = config_.n_routed_experts, hidden = config_.hidden_size;
  SetGroup(WeightGroup::kRouterAndNorms);
  Pack({source_->Take(prefix + "weight", {experts, hidden}), nullptr},
       {{{{0, experts}, {0, hidden}}, &common.router, kShared}}, {.widen = true});
  if (config_.router == RouterKind::kNoauxTc) {
    Vector(prefix + "e_score_correction_bias", experts, common.router_bias);
  }
}

void WeightWalk::Attention(const std::string& prefix, int64_t layer) {
  const int64_t heads = config_.num_attention_heads, nope = config_.qk_nope_head_dim;
  const int64_t head_dim = config_.qk_head_dim(), v = config_.v_head_dim;
  const int64_t latent = config_.kv_lora_rank, hidden = config_.hidden_size;
  const bool low_rank = config_.q_lora_rank > 0;
  const int64_t query_inputs = low_rank ? config_.q_lora_rank : hidden;
  std::vector<Target> query, kv_b, output;
  for (int i = 0; i < layout_.attn_tp_size(); ++i) {
    // A shard of heads has several users as soon as there are several replicas.
    const int owner = layout_.dp_size() == 1 ? i : kShared;
    const Range segments = SegmentsOf(i, layout_.attn_tp_size());
    AttentionShard& shard = weights_.attention_[i][layer];
    shard.heads = UnitsOfSegments(heads, segments);
    shard.key_up.resize(shard.heads.size());
    shard.value_up.resize(shard.heads.size());
    shard.output_bounds = SegmentBounds(segments, heads, v, heads * v);
    query.push_back(
        {{{shard.heads.begin * head_dim, shard.heads.end * head_dim}, {0, query_inputs}},
         &shard.query,
         owner});
    for (int64_t h = shard.heads.begin; h < shard.heads.end; ++h) {
      const int64_t row = h * (nope + v), own = h - shard.heads.begin;
      kv_b.push_back(
          {{{row, row + nope}, {0, latent}, /*transposed=*/true}, &shard.key_up[own], owner});
      kv_b.push_back({{{row + nope, row + nope + v}, {0, latent}}, &shard.value_up[own], owner});
    }
    output.push_back(
        {{{0, hidden}, {shard.heads.begin * v, shard.heads.end * v}}, &shard.output, owner});
  }
  const auto pack = [&](const std::string& name, int64_t rows, int64_t columns,
                        const std::vector<Target>& targets) {
    const MatrixTensor tensor = TakeMatrix(prefix + name, rows, columns);
    Pack(tensor, targets);
  };
  SetGroup(WeightGroup::kAttention);
  pack(low_rank ? "q_b_proj.weight" : "q_proj.weight", heads * head_dim, query_inputs, query);
  pack("kv_b_proj.weight", heads * (nope + v), latent, kv_b);
  pack("o_proj.weight", hidden, heads * v, output);
}

void WeightWalk::Mlp(const std::string& prefix, int64_t width, int64_t layer) {
  const int64_t hidden = config_.hidden_size;
  const MatrixTensor gate = TakeMatrix(prefix + "gate_proj.weight", width, hidden);
  const MatrixTensor up = TakeMatrix(prefix + "up_proj.weight", width, hidden);
  const MatrixTensor down = TakeMatrix(prefix + "down_proj.weight", hidden, width);
  // Whole scale blocks of the down-projection, so that no chain of a block is split over ranks.
  const int64_t unit = down.scales != nullptr ? quantization_.block_columns : kMlpUnit;
  const int64_t units = CeilDiv(width, unit);
  std::vector<Target> gates, ups, downs;
  for (int rank = 0; rank < layout_.tp_size(); ++rank) {
    const Range segments = SegmentsOf(rank, layout_.tp_size());
    const Range own_units = UnitsOfSegments(units, segments);
    const Range own{std::min(own_units.begin * unit, width), std::min(own_units.end * unit, width)};
    MlpShard& shard = weights_.ffn_[rank][layer].mlp;
    shard.unit = unit;
    shard.first_unit = own_units.begin;
    shard.down_bounds = SegmentBounds(segments, units, unit, width);
    gates.push_back({{own, {0, hidden}}, &shard.gate, rank});
    ups.push_back({{own, {0, hidden}}, &shard.up, rank});
    downs.push_back({{{0, hidden}, own}, &shard.down, rank});
  }
  Pack(gate, gates);
  Pack(up, ups);
  Pack(down, downs);
}

void WeightWalk::Experts(const std::string& prefix, int64_t layer) {
  const int64_t width = config_.moe_intermediate_size, hidden = config_.hidden_size;
  const int64_t count = config_.n_routed_experts;
  const auto pack = [&](const std::string& name, int64_t rows, int64_t columns, int rank,
                        bool active, PackedMatrix& matrix) {
    const MatrixTensor tensor = TakeMatrix(name, rows, columns);
    Pack(tensor, {{{{0, rows}, {0, columns}}, &matrix, rank}}, {.active = active});
  };
  for (int rank = 0; rank < layout_.tp_size(); ++rank) {
    const Range segments = SegmentsOf(rank, layout_.tp_size());
    FfnShard& shard = weights_.ffn_[rank][layer];
    shard.expert_range = UnitsOfSegments(count, segments);
    shard.expert_bounds = SegmentBounds(segments, count, 1, count);
    shard.experts.resize(shard.expert_range.size());
    for (int64_t e = shard.expert_range.begin; e < shard.expert_range.end; ++e) {
      ExpertWeights& expert = shard.experts[e - shard.expert_range.begin];
      const std::string name = prefix + std::to_string(e) + ".";
      // Experts are alike: the first ones stand for those that a token chooses.
      const bool active = e < config_.num_experts_per_tok;
      pack(name + "gate_proj.weight", width, hidden, rank, active, expert.gate);
      pack(name + "up_proj.weight", width, hidden, rank, active, expert.up);
      pack(name + "down_proj.weight", hidden, width, rank, active, expert.down);
    }
  }
}

}  // namespace tandem
