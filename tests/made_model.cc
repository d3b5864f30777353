#include "made_model.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "base/numeric.h"
#include "engine/sampler.h"

namespace tandem {
namespace {

// The embedding is a Hadamard matrix: rows of +-1, exact in BF16 and orthogonal, so a head row that
// equals an embedding row answers to that token alone.
constexpr int64_t kHidden = MadeModel::kVocab;
constexpr int64_t kLayers = 2;  // one dense, one of experts; the MTP module's is the third
constexpr int64_t kHeads = 4, kLatent = 16, kNope = 8, kRope = 4, kValue = 8;
constexpr int64_t kDenseWidth = 48, kExpertWidth = 16, kExperts = 8;

float Hadamard(int64_t row, int64_t column) {
  return std::popcount(static_cast<uint64_t>(row & column)) % 2 == 0 ? 1.0f : -1.0f;
}

bool Contains(const std::vector<int32_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Collects tensors of one file.
class TensorWriter {
 public:
  using Value = std::function<float(int64_t row, int64_t column)>;

  explicit TensorWriter(bool fp32) : fp32_(fp32) {}

  void Add(const std::string& name, std::vector<int64_t> shape, const Value& value) {
    const size_t begin = data_.size();
    const int64_t columns = shape.size() > 1 ? shape[1] : 1;
    for (int64_t row = 0; row < shape[0]; ++row) {
      for (int64_t column = 0; column < columns; ++column) Append(value(row, column));
    }
    header_[name] = {{"dtype", fp32_ ? "F32" : "BF16"},
                     {"shape", shape},
                     {"data_offsets", {begin, data_.size()}}};
  }
  void Constant(const std::string& name, std::vector<int64_t> shape, float value) {
    Add(name, std::move(shape), [=](int64_t, int64_t) { return value; });
  }
  // Anything: its output is multiplied by zero later, but it must be computed.
  void Random(const std::string& name, std::vector<int64_t> shape) {
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)));
    Add(name, std::move(shape),
        [&](int64_t, int64_t) { return static_cast<float>(random()) * 0x1p-32f - 0.5f; });
  }

  void WriteTo(const TestFolder& folder) const {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t size = header.size();
    folder.Write("model.safetensors",
                 std::string(reinterpret_cast<const char*>(&size), 8) + header + data_);
  }

 private:
  void Append(float value) {
    const uint16_t half = BFloat16::FromFloat(value).bits;
    if (fp32_) {
      data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      data_.append(reinterpret_cast<const char*>(&half), sizeof half);
    }
  }

  const bool fp32_;
  nlohmann::json header_;
  std::string data_;
};

void AddMlp(TensorWriter& writer, const std::string& prefix, int64_t width) {
  writer.Random(prefix + "gate_proj.weight", {width, kHidden});
  writer.Random(prefix + "up_proj.weight", {width, kHidden});
  writer.Constant(prefix + "down_proj.weight", {kHidden, width}, 0.0f);
}

void AddLayer(TensorWriter& writer, int64_t layer, bool dense) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  writer.Constant(prefix + "input_layernorm.weight", {kHidden}, 1.0f);
  writer.Constant(prefix + "post_attention_layernorm.weight", {kHidden}, 1.0f);
  writer.Random(attention + "q_proj.weight", {kHeads * (kNope + kRope), kHidden});
  writer.Random(attention + "kv_a_proj_with_mqa.weight", {kLatent + kRope, kHidden});
  writer.Constant(attention + "kv_a_layernorm.weight", {kLatent}, 1.0f);
  writer.Random(attention + "kv_b_proj.weight", {kHeads * (kNope + kValue), kLatent});
  writer.Constant(attention + "o_proj.weight", {kHidden, kHeads * kValue}, 0.0f);
  if (dense) {
    AddMlp(writer, prefix + "mlp.", kDenseWidth);
    return;
  }
  writer.Random(prefix + "mlp.gate.weight", {kExperts, kHidden});
  writer.Constant(prefix + "mlp.gate.e_score_correction_bias", {kExperts}, 0.0f);
  AddMlp(writer, prefix + "mlp.shared_experts.", kExpertWidth);
  for (int64_t e = 0; e < kExperts; ++e) {
    AddMlp(writer, prefix + "mlp.experts." + std::to_string(e) + ".", kExpertWidth);
  }
}

}  // namespace

MadeModel::MadeModel(const MadeModelOptions& options) : options_(options) {
  WriteConfig();
  WriteTensors();
}

void MadeModel::WriteConfig() const {
  nlohmann::json config = {{"architectures", {"DeepseekV3ForCausalLM"}},
                           {"model_type", "deepseek_v3"},
                           {"torch_dtype", options_.fp32 ? "float32" : "bfloat16"},
                           {"vocab_size", kVocab},
                           {"hidden_size", kHidden},
                           {"intermediate_size", kDenseWidth},
                           {"moe_intermediate_size", kExpertWidth},
                           {"num_hidden_layers", kLayers},
                           {"num_nextn_predict_layers", 1},
                           {"num_attention_heads", kHeads},
                           {"num_key_value_heads", kHeads},
                           {"q_lora_rank", nullptr},
                           {"kv_lora_rank", kLatent},
                           {"qk_nope_head_dim", kNope},
                           {"qk_rope_head_dim", kRope},
                           {"v_head_dim", kValue},
                           {"n_routed_experts", kExperts},
                           {"n_shared_experts", 1},
                           {"num_experts_per_tok", 2},
                           {"n_group", 1},
                           {"topk_group", 1},
                           {"first_k_dense_replace", options_.experts_first ? 0 : 1},
                           {"moe_layer_freq", options_.experts_first ? 2 : 1},
                           {"norm_topk_prob", true},
                           {"routed_scaling_factor", 1.0},
                           {"scoring_func", "sigmoid"},
                           {"topk_method", "noaux_tc"},
                           {"hidden_act", "silu"},
                           {"rms_norm_eps", 1e-6},
                           {"max_position_embeddings", options_.context},
                           {"rope_theta", 10000.0},
                           {"rope_scaling", nullptr},
                           {"attention_bias", false},
                           {"tie_word_embeddings", false},
                           {"bos_token_id", 0},
                           {"eos_token_id", 1}};
  folder_.Write("config.json", config.dump());
  folder_.Write("generation_config.json", R"({"bos_token_id": 0, "eos_token_id": 1})");
}

void MadeModel::WriteTensors() const {
  TensorWriter writer(options_.fp32);
  writer.Add("model.embed_tokens.weight", {kVocab, kHidden}, Hadamard);
  // Row Successor(t) answers to t's embedding with `sharpness`, to all others with zero.
  std::vector<int32_t> before(kVocab);
  for (int32_t t = 0; t < kVocab; ++t) before[Successor(t)] = t;
  const float scale = options_.sharpness / kHidden;
  const auto head = [&](int64_t row, int64_t column) {
    return scale * Hadamard(before[row], column);
  };
  writer.Add("lm_head.weight", {kVocab, kHidden}, head);
  writer.Constant("model.norm.weight", {kHidden}, 1.0f);
  for (int64_t layer = 0; layer <= kLayers; ++layer) {
    const bool dense = options_.experts_first ? layer % 2 == 1 && layer < kLayers : layer == 0;
    AddLayer(writer, layer, dense);
  }

  const std::string mtp = "model.layers." + std::to_string(kLayers) + ".";
  writer.Add(mtp + "embed_tokens.weight", {kVocab, kHidden}, [&](int64_t row, int64_t column) {
    return Hadamard(Contains(options_.misread, row) ? (row + 1) % kVocab : row, column);
  });
  writer.Add(mtp + "shared_head.head.weight", {kVocab, kHidden}, [&](int64_t row, int64_t column) {
    return Contains(options_.muted, row) ? -head(row, column) : head(row, column);
  });
  for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) {
    writer.Constant(mtp + norm, {kHidden}, 1.0f);
  }
  // The embedding half passes, the state half is not looked at.
  writer.Add(mtp + "eh_proj.weight", {kHidden, 2 * kHidden},
             [](int64_t row, int64_t column) { return row == column ? 1.0f : 0.0f; });
  writer.WriteTo(folder_);
}

int32_t MadeModel::Sample(int32_t after, int32_t position, const SamplingParams& sampling,
                          bool draft) const {
  if (draft && Contains(options_.misread, after)) after = (after + 1) % kVocab;
  std::vector<float> logits(kVocab, 0.0f);
  const int32_t successor = Successor(after);
  const bool negated = draft && Contains(options_.muted, successor);
  logits[successor] = negated ? -options_.sharpness : options_.sharpness;
  return SampleToken(logits, sampling, position);
}

Expectation MadeModel::Expect(const GenerationRequest& request, int k) const {
  const int32_t limit = static_cast<int32_t>(std::min<int64_t>(
      options_.context, static_cast<int64_t>(request.prompt.size()) + request.max_tokens));
  std::vector<int32_t> text = request.prompt;
  std::vector<int32_t> drafts;
  Expectation expected;
  bool ended = false;
  while (!ended) {
    // One window (the first is the prompt's last row): as long as the drafts are the text, it goes
    // on.
    int32_t accepted = 0;
    for (size_t row = 0; row <= drafts.size() && !ended; ++row) {
      const int32_t position = static_cast<int32_t>(text.size());
      const int32_t token = Sample(text.back(), position, request.sampling, false);
      text.push_back(token);
      ended = position + 1 == limit || Contains(request.stop_token_ids, token);
      if (row == drafts.size() || drafts[row] != token) break;
      ++accepted;
    }
    ++expected.steps;
    if (!drafts.empty()) {
      expected.accepted_per_step.push_back(accepted);
      expected.drafted += static_cast<int64_t>(drafts.size());
    }
    drafts.clear();
    const int32_t remaining = limit - static_cast<int32_t>(text.size());
    int32_t last = text.back();
    for (int32_t i = 0; i < std::min(k, remaining - 1); ++i) {
      last = Sample(last, static_cast<int32_t>(text.size()) + i, request.sampling, true);
      drafts.push_back(last);
    }
  }
  expected.tokens.assign(text.begin() + static_cast<int64_t>(request.prompt.size()), text.end());
  return expected;
}

}  // namespace tandem
