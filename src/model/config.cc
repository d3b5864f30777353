#include "model/config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "model/config_fields.h"
#include "model/config_rope.h"

namespace tandem {
namespace {

// Upper bounds, each at least four times what known models have (vocabulary and context: the
// largest known). Together they keep the bytes of a whole model, layers x experts x widths x 4,
// below 2^62, and both sides of every matrix but the embedding and the head within kMaxWidth.
constexpr int64_t kMaxRows = int64_t{1} << 20;   // vocabulary, context
constexpr int64_t kMaxWidth = int64_t{1} << 18;  // hidden, intermediate, all heads together
constexpr int64_t kMaxRank = int64_t{1} << 16;   // latent widths
constexpr int64_t kMaxCount = int64_t{1} << 12;  // heads, experts, widths of a head
constexpr int64_t kMaxLayers = int64_t{1} << 10;
// Layers times experts; Kimi K2, the largest that we know, has 23,424. Each is three or six
// tensors, whose names a walk over a model keeps.
constexpr int64_t kMaxExpertsInAll = int64_t{1} << 17;
// Step-3.5 and MiMo-V2 have the most MTP modules that we know of, 3.
constexpr int64_t kMaxMtpLayers = 8;

constexpr const char* kDeepseekV2 = "deepseek_v2";

void ReadArchitecture(const ConfigFields& fields, ModelConfig& config) {
  fields.RefuseIfAbsent("model_type");
  fields.ReadWord("model_type", {"deepseek_v2", "deepseek_v3", "glm4_moe_lite"}, config.model_type);
  std::string architecture = "DeepseekV3ForCausalLM";
  if (config.model_type == kDeepseekV2) architecture = "DeepseekV2ForCausalLM";
  if (config.model_type == "glm4_moe_lite") architecture = "Glm4MoeLiteForCausalLM";
  // Exports of the MTP module alone (for a draft model path) are of SGLang's class of that name.
  const std::string nextn = architecture + "NextN";
  std::vector<std::string> classes;
  fields.ReadWords("architectures", 1, {architecture.c_str(), nextn.c_str()}, classes);
  std::string word;
  fields.ReadWord("hidden_act", {"silu"}, word);
  fields.Only("attention_bias", false);
  fields.Only("tie_word_embeddings", false);
  // Both rotary layouts exist in GLM's and transformers' classes: pairs (2i, 2i+1) over the whole
  // of qk_rope_head_dim is what every checkpoint of the three families uses.
  fields.Only("rope_interleave", true);
  fields.Only("partial_rotary_factor", 1.0);
  for (const char* name : {"dtype", "torch_dtype"}) {
    fields.ReadWord(name, {"bfloat16", "float32", "float16"}, word);
    if (word == "float16") {
      fields.RefuseValue(name,
                         "is not supported: no kernel reads F16 tensors, only BF16, FP32 and FP8 "
                         "ones; convert the checkpoint to bfloat16 or float32");
    }
  }
}

void ReadSizes(const ConfigFields& fields, ModelConfig& config) {
  const struct {
    const char* name;
    int64_t ModelConfig::*field;
    int64_t min, max;
    bool required;
  } kSizes[] = {
      {"vocab_size", &ModelConfig::vocab_size, 1, kMaxRows, true},
      {"hidden_size", &ModelConfig::hidden_size, 1, kMaxWidth, true},
      {"intermediate_size", &ModelConfig::intermediate_size, 1, kMaxWidth, true},
      {"moe_intermediate_size", &ModelConfig::moe_intermediate_size, 1, kMaxWidth, true},
      {"num_hidden_layers", &ModelConfig::num_hidden_layers, 1, kMaxLayers, true},
      {"num_nextn_predict_layers", &ModelConfig::num_nextn_predict_layers, 0, kMaxMtpLayers, false},
      {"num_attention_heads", &ModelConfig::num_attention_heads, 1, kMaxCount, true},
      {"q_lora_rank", &ModelConfig::q_lora_rank, 1, kMaxRank, false},
      {"kv_lora_rank", &ModelConfig::kv_lora_rank, 1, kMaxRank, true},
      {"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim, 1, kMaxCount, true},
      {"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim, 2, kMaxCount, true},
      {"v_head_dim", &ModelConfig::v_head_dim, 1, kMaxCount, true},
      {"n_routed_experts", &ModelConfig::n_routed_experts, 1, kMaxCount, true},
      {"n_shared_experts", &ModelConfig::n_shared_experts, 0, kMaxCount, true},
      {"num_experts_per_tok", &ModelConfig::num_experts_per_tok, 1, kMaxCount, true},
      {"max_position_embeddings", &ModelConfig::max_position_embeddings, 1, kMaxRows, true},
  };
  for (const auto& size : kSizes) {
    if (size.required) fields.RefuseIfAbsent(size.name);
    fields.ReadInt(size.name, size.min, size.max, config.*size.field);
  }
  // A forgotten q_lora_rank must not silently mean "none": that is what null is for.
  if (!fields.Mentions("q_lora_rank")) {
    fields.Refuse("q_lora_rank", "is missing (null means none)");
  }
  fields.RefuseIfAbsent("rms_norm_eps");
  fields.ReadDouble("rms_norm_eps", 1e-12, 1e-1, config.rms_norm_eps);
  fields.ReadTokenIds("eos_token_id", config.vocab_size, config.eos_token_ids);
  if (fields.Has("bos_token_id")) {
    fields.ReadInt("bos_token_id", 0, config.vocab_size - 1, config.bos_token_id.emplace(0));
  }
}

// Which layers hold experts: two numbers, or the list that transformers 5 writes, or both.
void ReadLayerKinds(const ConfigFields& fields, ModelConfig& config) {
  // More than there are layers: all are dense (and so is the one layer that a NextN export counts).
  fields.ReadInt("first_k_dense_replace", 0, kMaxLayers, config.first_k_dense_replace);
  fields.ReadInt("moe_layer_freq", 1, kMaxLayers, config.moe_layer_freq);
  if (!fields.Has("mlp_layer_types")) return fields.RefuseIfAbsent("first_k_dense_replace");
  std::vector<std::string> kinds;
  fields.ReadWords("mlp_layer_types", config.num_hidden_layers, {"dense", "sparse"}, kinds);
  if (!fields.Has("first_k_dense_replace")) {
    config.first_k_dense_replace = std::find(kinds.begin(), kinds.end(), "sparse") - kinds.begin();
  }
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    if ((kinds[layer] == "sparse") != config.IsMoeLayer(static_cast<int64_t>(layer))) {
      return fields.Refuse("mlp_layer_types", "says \"" + kinds[layer] + "\" of layer " +
                                                  std::to_string(layer) +
                                                  ", unlike first_k_dense_replace and "
                                                  "moe_layer_freq");
    }
  }
}

void ReadRouter(const ConfigFields& fields, ModelConfig& config) {
  std::string method, scoring;
  if (config.model_type == kDeepseekV2) {
    // As in DeepSeek's and transformers' V2 classes, whose files may leave both out.
    method = "greedy";
    fields.ReadWord("topk_method", {"greedy", "group_limited_greedy"}, method);
    fields.ReadWord("scoring_func", {"softmax"}, scoring);
    config.router = method == "greedy" ? RouterKind::kGreedy : RouterKind::kGroupLimitedGreedy;
  } else {
    fields.ReadWord("topk_method", {"noaux_tc"}, method);
    fields.ReadWord("scoring_func", {"sigmoid"}, scoring);
  }
  for (const char* name : {"norm_topk_prob", "routed_scaling_factor"}) fields.RefuseIfAbsent(name);
  fields.ReadBool("norm_topk_prob", config.norm_topk_prob);
  fields.ReadDouble("routed_scaling_factor", 1e-6, 1e6, config.routed_scaling_factor);
  if (config.router != RouterKind::kGreedy) {
    for (const char* name : {"n_group", "topk_group"}) fields.RefuseIfAbsent(name);
  }
  fields.ReadInt("n_group", 1, kMaxCount, config.n_group);
  fields.ReadInt("topk_group", 1, kMaxCount, config.topk_group);
  // V2-Lite's files hold 1 or null there; whatever it is, this method has no groups.
  if (config.router == RouterKind::kGreedy) config.n_group = config.topk_group = 1;
}

void CheckRouter(const ConfigFields& fields, const ModelConfig& config) {
  const std::string groups = std::to_string(config.n_group);
  if (config.n_routed_experts % config.n_group != 0) {
    return fields.Refuse("n_group", groups + " does not divide n_routed_experts");
  }
  const int64_t group_size = config.n_routed_experts / config.n_group;
  // V3's score of a group is the sum of its two best experts.
  if (config.router == RouterKind::kNoauxTc && config.n_group > 1 && group_size < 2) {
    fields.Refuse("n_group", groups + " leaves fewer than two experts per group");
  }
  if (config.topk_group > config.n_group) {
    fields.Refuse("topk_group", std::to_string(config.topk_group) + " is more than n_group");
  }
  if (config.num_experts_per_tok > config.topk_group * group_size) {
    fields.Refuse("num_experts_per_tok", std::to_string(config.num_experts_per_tok) +
                                             " is more than the experts of topk_group groups");
  }
}

// Numbers that are fine alone but not together.
void CheckSizes(const ConfigFields& fields, const ModelConfig& config) {
  if (config.qk_rope_head_dim % 2 != 0) {
    fields.Refuse("qk_rope_head_dim", std::to_string(config.qk_rope_head_dim) + " is odd");
  }
  const auto check_width = [&](const char* name, int64_t count, int64_t width, const char* what) {
    if (count * width <= kMaxWidth) return;
    fields.Refuse(name, std::to_string(count) + " times " + what + " is more than " +
                            std::to_string(kMaxWidth) + " columns");
  };
  check_width("num_attention_heads", config.num_attention_heads, config.qk_head_dim(),
              "qk_nope_head_dim + qk_rope_head_dim");
  check_width("num_attention_heads", config.num_attention_heads,
              config.qk_nope_head_dim + config.v_head_dim, "qk_nope_head_dim + v_head_dim");
  if (config.num_hidden_layers * config.n_routed_experts > kMaxExpertsInAll) {
    fields.Refuse("n_routed_experts", std::to_string(config.n_routed_experts) +
                                          " times num_hidden_layers is more than " +
                                          std::to_string(kMaxExpertsInAll) + " experts in all");
  }
  check_width("n_shared_experts", config.n_shared_experts, config.moe_intermediate_size,
              "moe_intermediate_size");
}

// Only FP8 in blocks. Fields that we do not know could change what the bytes mean: refused.
void ReadQuantization(const ConfigFields& fields, ModelConfig& config) {
  const auto quantization = fields.Object("quantization_config");
  if (!quantization) return;
  std::string word;
  std::vector<int64_t> block;
  for (const char* name : {"quant_method", "weight_block_size"}) quantization->RefuseIfAbsent(name);
  quantization->ReadWord("quant_method", {"fp8"}, word);
  quantization->ReadWord("fmt", {"e4m3"}, word);
  // Scales of activations are a matter of kernels that round activations; ours do not.
  quantization->ReadWord("activation_scheme", {"dynamic"}, word);
  // "ue8m0": FP32 scales that are powers of two, or F8_E8M0 ones; each tensor's dtype says which.
  quantization->ReadWord("scale_fmt", {"ue8m0"}, word);
  quantization->Only("dequantize", false);
  quantization->ReadInts("weight_block_size", 2, 1, kMaxWidth, block);
  for (const std::string& name : quantization->Names()) {
    // Which tensors are FP8 is decided by their own dtype, so lists of others say nothing new.
    const char* const kKnown[] = {"quant_method",
                                  "fmt",
                                  "activation_scheme",
                                  "scale_fmt",
                                  "dequantize",
                                  "weight_block_size",
                                  "modules_to_not_convert",
                                  "ignored_layers"};
    const bool known = std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
    if (!known && quantization->Has(name.c_str())) {
      quantization->RefuseValue(name.c_str(), "is not supported");
    }
  }
  if (block.empty()) return;
  config.quantization = {.present = true, .block_rows = block[0], .block_columns = block[1]};
}

}  // namespace

bool ModelConfig::IsMoeLayer(int64_t layer) const {
  if (layer >= num_hidden_layers) return true;
  return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

Result<ModelConfig> LoadModelConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(const ConfigFields fields, ConfigFields::Load(folder + "/config.json"));
  ModelConfig config;
  ReadArchitecture(fields, config);
  ReadSizes(fields, config);
  ReadLayerKinds(fields, config);
  ReadRouter(fields, config);
  ReadRope(fields, config);
  ReadQuantization(fields, config);
  RETURN_IF_ERROR(fields.status());
  CheckRouter(fields, config);
  CheckSizes(fields, config);
  RETURN_IF_ERROR(fields.status());
  return config;
}

Result<GenerationDefaults> LoadGenerationConfig(const std::string& folder,
                                                const ModelConfig& config) {
  GenerationDefaults defaults;
  defaults.eos_token_ids = config.eos_token_ids;
  defaults.bos_token_id = config.bos_token_id;
  const Result<ConfigFields> loaded = ConfigFields::Load(folder + "/generation_config.json");
  if (!loaded.ok() && loaded.status().code() == StatusCode::kNotFound) return defaults;
  if (!loaded.ok()) return loaded.status();
  const ConfigFields& fields = *loaded;

  fields.ReadTokenIds("eos_token_id", config.vocab_size, defaults.eos_token_ids);
  if (fields.Has("bos_token_id")) {
    fields.ReadInt("bos_token_id", 0, config.vocab_size - 1, defaults.bos_token_id.emplace(0));
  }
  if (fields.Has("do_sample")) fields.ReadBool("do_sample", defaults.do_sample.emplace(false));
  if (fields.Has("top_k")) {
    // -1 is another spelling of "off" there.
    int32_t& top_k = defaults.top_k.emplace(0);
    fields.ReadInt("top_k", -1, std::numeric_limits<int32_t>::max(), top_k);
    top_k = std::max(top_k, 0);
  }
  const auto read_float = [&](const char* name, double min, double max, std::optional<float>& out) {
    if (!fields.Has(name)) return;
    double number = 0.0;
    fields.ReadDouble(name, min, max, number);
    out = static_cast<float>(number);
  };
  read_float("temperature", 0.0, 1e6, defaults.temperature);
  // The smallest positive float: a top_p that is not 0 here must not become 0 there.
  read_float("top_p", std::numeric_limits<float>::denorm_min(), 1.0, defaults.top_p);
  read_float("min_p", 0.0, 1.0, defaults.min_p);
  RETURN_IF_ERROR(fields.status());
  if (defaults.do_sample == false) defaults.temperature = 0.0f;
  return defaults;
}

}  // namespace tandem
