#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "model/text_file.h"

namespace tandem {
namespace {

using nlohmann::json;

// Real configs have 2 kB, or some hundred with a quantization list.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// Upper bounds, each at least four times what known models have (vocabulary and context: the
// largest known). Together they keep the bytes of a whole model, layers x experts x widths x 4,
// below 2^62.
constexpr int64_t kMaxRows = int64_t{1} << 20;   // vocabulary, context
constexpr int64_t kMaxWidth = int64_t{1} << 18;  // hidden, intermediate
constexpr int64_t kMaxRank = int64_t{1} << 16;   // latent widths
constexpr int64_t kMaxCount = int64_t{1} << 12;  // heads, experts, widths of a head
constexpr int64_t kMaxLayers = int64_t{1} << 10;
// Frequencies must fall from pair to pair (theta > 1); the largest theta we know of is 1e8.
constexpr double kMinTheta = 1.001;
constexpr double kMaxTheta = 1e12;

// Reads fields of one JSON object and keeps the first error, so that callers can read on and check
// once. A null field is an absent field.
class FieldReader {
 public:
  FieldReader(std::string file, std::string prefix, const json& object)
      : file_(std::move(file)), prefix_(std::move(prefix)), object_(object) {}

  const Status& status() const { return status_; }

  // The field, or nullptr if it is absent.
  const json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  void Refuse(const std::string& name, const std::string& why) {
    if (status_.ok()) status_ = InvalidArgument(file_ + ": " + prefix_ + name + ": " + why);
  }
  void RefuseValue(const char* name, const json& value, const std::string& why) {
    Refuse(name, value.dump(-1, ' ', true).substr(0, 100) + " " + why);
  }

  // A whole number in [min, max]; required unless `out` has a default already.
  template <typename Int>
  void ReadInt(const char* name, int64_t min, int64_t max, bool required, Int& out) {
    const json* value = Find(name);
    if (!value) {
      if (required) Refuse(name, "is missing");
      return;
    }
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() &&
                        value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
      RefuseValue(
          name, *value,
          "is not a whole number from " + std::to_string(min) + " to " + std::to_string(max));
      return;
    }
    out = static_cast<Int>(value->get<int64_t>());
  }

  void ReadDouble(const char* name, double min, double max, bool required, double& out) {
    const json* value = Find(name);
    if (!value) {
      if (required) Refuse(name, "is missing");
      return;
    }
    if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
      RefuseValue(name, *value,
                  "is not a number from " + json(min).dump() + " to " + json(max).dump());
      return;
    }
    out = value->get<double>();
  }

  void ReadBool(const char* name, bool required, bool& out) {
    const json* value = Find(name);
    if (!value) {
      if (required) Refuse(name, "is missing");
    } else if (!value->is_boolean()) {
      RefuseValue(name, *value, "is not true or false");
    } else {
      out = value->get<bool>();
    }
  }

  // Optional values in two steps, so that "absent" can be told from a default.
  template <typename T, typename Read>
  void ReadOptional(const char* name, std::optional<T>& out, Read read) {
    if (!Find(name)) return;
    T value{};
    read(value);
    if (status_.ok()) out = value;
  }

  // The only value that this engine supports, if the field is there at all.
  void Only(const char* name, const json& supported) {
    const json* value = Find(name);
    if (value && *value != supported) {
      RefuseValue(name, *value, "is not supported, only " + supported.dump());
    }
  }

  // A token id, or a list of them.
  void ReadTokenIds(const char* name, int64_t vocab_size, std::vector<int32_t>& out) {
    const json* value = Find(name);
    if (!value) return;
    const json list = value->is_array() ? *value : json::array({*value});
    std::vector<int32_t> ids;
    for (const json& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
        RefuseValue(name, id, "is not a token id below " + std::to_string(vocab_size));
        return;
      }
      ids.push_back(id.get<int32_t>());
    }
    out = std::move(ids);
  }

 private:
  std::string file_;
  std::string prefix_;
  const json& object_;
  Status status_;
};

Result<json> LoadObject(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception& e) {
    return InvalidArgument(path + ": not valid JSON: " + Quoted(e.what()));
  }
  if (!object.is_object()) return InvalidArgument(path + ": not a JSON object");
  return object;
}

void CheckArchitecture(FieldReader& reader) {
  if (!reader.Find("model_type")) reader.Refuse("model_type", "is missing");
  reader.Only("model_type", "deepseek_v3");
  reader.Only("architectures", json::array({"DeepseekV3ForCausalLM"}));
  reader.Only("topk_method", "noaux_tc");
  reader.Only("scoring_func", "sigmoid");
  reader.Only("hidden_act", "silu");
  reader.Only("attention_bias", false);
  reader.Only("tie_word_embeddings", false);
  reader.Only("rope_interleave", true);
  if (const json* value = reader.Find("quantization_config")) {
    reader.RefuseValue("quantization_config", *value,
                       "is not supported, only BF16 and FP32 tensors");
  }
  for (const char* name : {"dtype", "torch_dtype"}) {
    const json* value = reader.Find(name);
    if (value && *value != "bfloat16" && *value != "float32") {
      reader.RefuseValue(name, *value, "is not supported, only \"bfloat16\" and \"float32\"");
    }
  }
}

void ReadSizes(FieldReader& reader, ModelConfig& config) {
  reader.ReadInt("vocab_size", 1, kMaxRows, true, config.vocab_size);
  reader.ReadInt("hidden_size", 1, kMaxWidth, true, config.hidden_size);
  reader.ReadInt("intermediate_size", 1, kMaxWidth, true, config.intermediate_size);
  reader.ReadInt("moe_intermediate_size", 1, kMaxWidth, true, config.moe_intermediate_size);
  reader.ReadInt("num_hidden_layers", 1, kMaxLayers, true, config.num_hidden_layers);
  reader.ReadInt("num_nextn_predict_layers", 0, 1, false, config.num_nextn_predict_layers);
  reader.ReadInt("num_attention_heads", 1, kMaxCount, true, config.num_attention_heads);
  reader.ReadInt("q_lora_rank", 1, kMaxRank, false, config.q_lora_rank);
  reader.ReadInt("kv_lora_rank", 1, kMaxRank, true, config.kv_lora_rank);
  reader.ReadInt("qk_nope_head_dim", 1, kMaxCount, true, config.qk_nope_head_dim);
  reader.ReadInt("qk_rope_head_dim", 2, kMaxCount, true, config.qk_rope_head_dim);
  reader.ReadInt("v_head_dim", 1, kMaxCount, true, config.v_head_dim);
  reader.ReadInt("n_routed_experts", 1, kMaxCount, true, config.n_routed_experts);
  reader.ReadInt("n_shared_experts", 0, kMaxCount, true, config.n_shared_experts);
  reader.ReadInt("num_experts_per_tok", 1, kMaxCount, true, config.num_experts_per_tok);
  reader.ReadInt("n_group", 1, kMaxCount, true, config.n_group);
  reader.ReadInt("topk_group", 1, kMaxCount, true, config.topk_group);
  reader.ReadInt("first_k_dense_replace", 0, kMaxLayers, true, config.first_k_dense_replace);
  reader.ReadInt("moe_layer_freq", 1, kMaxLayers, false, config.moe_layer_freq);
  reader.ReadInt("max_position_embeddings", 1, kMaxRows, true, config.max_position_embeddings);
  reader.ReadBool("norm_topk_prob", true, config.norm_topk_prob);
  reader.ReadDouble("routed_scaling_factor", 1e-6, 1e6, true, config.routed_scaling_factor);
  reader.ReadDouble("rms_norm_eps", 1e-12, 1e-1, true, config.rms_norm_eps);
  reader.ReadTokenIds("eos_token_id", config.vocab_size, config.eos_token_ids);
  reader.ReadOptional("bos_token_id", config.bos_token_id, [&](int32_t& id) {
    reader.ReadInt("bos_token_id", 0, config.vocab_size - 1, true, id);
  });
}

void CheckRelations(FieldReader& reader, const ModelConfig& config) {
  if (config.qk_rope_head_dim % 2 != 0) {
    reader.Refuse("qk_rope_head_dim", std::to_string(config.qk_rope_head_dim) + " is odd");
  }
  if (config.first_k_dense_replace > config.num_hidden_layers) {
    reader.Refuse("first_k_dense_replace",
                  std::to_string(config.first_k_dense_replace) + " is more than num_hidden_layers");
  }
  const std::string groups = std::to_string(config.n_group);
  if (config.n_routed_experts % config.n_group != 0) {
    reader.Refuse("n_group", groups + " does not divide n_routed_experts");
    return;
  }
  const int64_t group_size = config.n_routed_experts / config.n_group;
  // A group's score is the sum of its two best experts.
  if (config.n_group > 1 && group_size < 2) {
    reader.Refuse("n_group", groups + " leaves fewer than two experts per group");
  }
  if (config.topk_group > config.n_group) {
    reader.Refuse("topk_group", std::to_string(config.topk_group) + " is more than n_group");
  }
  if (config.num_experts_per_tok > config.topk_group * group_size) {
    reader.Refuse("num_experts_per_tok", std::to_string(config.num_experts_per_tok) +
                                             " is more than the experts of topk_group groups");
  }
}

// `name`: rope_scaling, or rope_parameters of transformers 5, which holds rope_theta too.
Status ReadRope(const std::string& file, const std::string& name, const json& object,
                ModelConfig& config) {
  FieldReader reader(file, name + ".", object);
  if (name == "rope_parameters") {
    reader.ReadDouble("rope_theta", kMinTheta, kMaxTheta, false, config.rope_theta);
  }
  for (const char* key : {"rope_type", "type"}) {
    const json* value = reader.Find(key);
    if (value && *value != "yarn" && *value != "default") {
      reader.RefuseValue(key, *value, "is not supported, only \"yarn\" and \"default\"");
    }
  }
  const json* type = reader.Find("rope_type") ? reader.Find("rope_type") : reader.Find("type");
  if (!type) reader.Refuse("rope_type", "is missing");
  if (!reader.status().ok() || *type == "default") return reader.status();

  RopeScaling& rope = config.rope_scaling;
  rope.present = true;
  reader.ReadDouble("factor", 1.0, 1e6, true, rope.factor);
  reader.ReadInt("original_max_position_embeddings", 1, kMaxRows, true,
                 rope.original_max_position_embeddings);
  reader.ReadDouble("beta_fast", 1e-3, 1e6, false, rope.beta_fast);
  reader.ReadDouble("beta_slow", 1e-3, 1e6, false, rope.beta_slow);
  reader.ReadDouble("mscale", 0.0, 1e3, false, rope.mscale);
  reader.ReadDouble("mscale_all_dim", 0.0, 1e3, false, rope.mscale_all_dim);
  if (rope.beta_fast < rope.beta_slow) reader.Refuse("beta_fast", "is less than beta_slow");
  reader.Only("truncate", true);
  if (const json* value = reader.Find("attention_factor")) {
    reader.RefuseValue("attention_factor", *value, "is not supported, only mscale");
  }
  return reader.status();
}

Status ReadRopes(const std::string& file, const json& object, ModelConfig& config) {
  FieldReader reader(file, "", object);
  const json* parameters = reader.Find("rope_parameters");
  const bool theta_inside =
      parameters && parameters->is_object() && parameters->contains("rope_theta");
  reader.ReadDouble("rope_theta", kMinTheta, kMaxTheta, !theta_inside, config.rope_theta);
  RETURN_IF_ERROR(reader.status());
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* value = reader.Find(name);
    if (!value) continue;
    if (!value->is_object()) {
      reader.RefuseValue(name, *value, "is not an object");
      return reader.status();
    }
    RETURN_IF_ERROR(ReadRope(file, name, *value, config));
  }
  return Status();
}

// How much attention is sharpened when the context is stretched by `factor`.
double YarnMscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

bool ModelConfig::IsMoeLayer(int64_t layer) const {
  if (layer >= num_hidden_layers) return true;
  return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

float ModelConfig::SoftmaxScale() const {
  const double m =
      rope_scaling.present ? YarnMscale(rope_scaling.factor, rope_scaling.mscale_all_dim) : 1.0;
  return static_cast<float>(m * m / std::sqrt(static_cast<double>(qk_head_dim())));
}

float ModelConfig::RopeMscale() const {
  if (!rope_scaling.present) return 1.0f;
  return static_cast<float>(YarnMscale(rope_scaling.factor, rope_scaling.mscale) /
                            YarnMscale(rope_scaling.factor, rope_scaling.mscale_all_dim));
}

std::vector<float> ModelConfig::RopeInvFreq() const {
  const double dim = static_cast<double>(qk_rope_head_dim);
  // The (fractional) pair that turns `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    const double context = static_cast<double>(rope_scaling.original_max_position_embeddings);
    return dim * std::log(context / (2.0 * std::numbers::pi * rotations)) /
           (2.0 * std::log(rope_theta));
  };
  double low = 0.0;
  double high = 0.0;
  if (rope_scaling.present) {
    low = std::max(std::floor(pair_of(rope_scaling.beta_fast)), 0.0);
    high = std::min(std::ceil(pair_of(rope_scaling.beta_slow)), dim - 1.0);
    if (low == high) high += 0.001;
  }
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < qk_rope_head_dim / 2; ++i) {
    const double plain = std::pow(rope_theta, -2.0 * static_cast<double>(i) / dim);
    double ramp = 0.0;
    if (rope_scaling.present) {
      ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    }
    inv_freq.push_back(
        static_cast<float>(plain * (1.0 - ramp) + plain / rope_scaling.factor * ramp));
  }
  return inv_freq;
}

Result<ModelConfig> LoadModelConfig(const std::string& folder) {
  const std::string path = folder + "/config.json";
  ASSIGN_OR_RETURN(const json object, LoadObject(path));
  FieldReader reader(path, "", object);
  ModelConfig config;
  CheckArchitecture(reader);
  RETURN_IF_ERROR(reader.status());
  // A forgotten q_lora_rank must not silently mean "none": that is what null is for.
  if (!object.contains("q_lora_rank")) reader.Refuse("q_lora_rank", "is missing (null means none)");
  ReadSizes(reader, config);
  RETURN_IF_ERROR(reader.status());
  CheckRelations(reader, config);
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(ReadRopes(path, object, config));
  return config;
}

Result<GenerationDefaults> LoadGenerationConfig(const std::string& folder,
                                                const ModelConfig& config) {
  const std::string path = folder + "/generation_config.json";
  GenerationDefaults defaults;
  defaults.eos_token_ids = config.eos_token_ids;
  defaults.bos_token_id = config.bos_token_id;
  Result<json> object = LoadObject(path);
  if (!object.ok() && object.status().code() == StatusCode::kNotFound) return defaults;
  if (!object.ok()) return object.status();

  FieldReader reader(path, "", *object);
  reader.ReadTokenIds("eos_token_id", config.vocab_size, defaults.eos_token_ids);
  reader.ReadOptional("bos_token_id", defaults.bos_token_id, [&](int32_t& id) {
    reader.ReadInt("bos_token_id", 0, config.vocab_size - 1, true, id);
  });
  reader.ReadOptional("do_sample", defaults.do_sample,
                      [&](bool& value) { reader.ReadBool("do_sample", true, value); });
  // -1 is another spelling of "off" there.
  reader.ReadOptional("top_k", defaults.top_k, [&](int32_t& value) {
    reader.ReadInt("top_k", -1, std::numeric_limits<int32_t>::max(), true, value);
    value = std::max(value, 0);
  });
  const auto read_float = [&](const char* name, double min, double max, std::optional<float>& out) {
    reader.ReadOptional(name, out, [&](float& value) {
      double number = 0.0;
      reader.ReadDouble(name, min, max, true, number);
      value = static_cast<float>(number);
    });
  };
  read_float("temperature", 0.0, 1e6, defaults.temperature);
  // The smallest positive float: a top_p that is not 0 here must not become 0 there.
  read_float("top_p", std::numeric_limits<float>::denorm_min(), 1.0, defaults.top_p);
  read_float("min_p", 0.0, 1.0, defaults.min_p);
  RETURN_IF_ERROR(reader.status());
  if (defaults.do_sample == false) defaults.temperature = 0.0f;
  return defaults;
}

}  // namespace tandem
