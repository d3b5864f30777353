// The published configs of the families, and every field of config.json under every kind of value.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/test_folder.h"

namespace tandem {
namespace {

using nlohmann::json;

Result<ModelConfig> LoadText(const std::string& text) {
  const TestFolder folder;
  folder.Write("config.json", text);
  return LoadModelConfig(folder.path());
}

Result<ModelConfig> Load(const json& config) {
  return LoadText(config.dump());
}

std::string ErrorOf(const json& config) {
  const Status status = Load(config).status();
  return status.ok() ? "loaded" : status.message();
}

json WithoutFields(json config, std::initializer_list<const char*> names) {
  for (const char* name : names) config.erase(name);
  return config;
}

// DeepSeek-V2-Lite's numbers (MODEL.md 1.2).
json V2Lite() {
  return json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "torch_dtype": "bfloat16", "vocab_size": 102400, "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": null,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1,
    "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": false,
    "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "hidden_act": "silu", "rms_norm_eps": 1e-06, "max_position_embeddings": 163840,
    "rope_theta": 10000, "aux_loss_alpha": 0.001, "seq_aux": true,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                     "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
    "attention_bias": false, "tie_word_embeddings": false, "bos_token_id": 100000,
    "eos_token_id": 100001})");
}

// GLM-4.7-Flash's (README.md says from where).
json Glm() {
  return json::parse(R"({
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "dtype": "bfloat16", "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
    "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_nextn_predict_layers": 1,
    "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
    "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
    "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1,
    "topk_group": 1, "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.8, "first_k_dense_replace": 1, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "max_position_embeddings": 202752, "rope_theta": 1000000,
    "rope_scaling": null, "partial_rotary_factor": 1.0, "attention_bias": false,
    "attention_dropout": 0.0, "tie_word_embeddings": false, "pad_token_id": 154820,
    "eos_token_id": [154820, 154827, 154829]})");
}

// A config in which every field that the engine reads has a value, and none its default.
json Everything() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16", "dtype": "bfloat16", "vocab_size": 300, "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 4,
    "num_nextn_predict_layers": 2, "num_attention_heads": 4, "q_lora_rank": 24,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "n_group": 4,
    "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": false, "routed_scaling_factor": 1.5, "first_k_dense_replace": 2,
    "moe_layer_freq": 2, "mlp_layer_types": ["dense", "dense", "sparse", "dense"],
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "max_position_embeddings": 256,
    "rope_theta": 5000, "rope_interleave": true, "partial_rotary_factor": 1.0,
    "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 4,
                     "original_max_position_embeddings": 64, "beta_fast": 31, "beta_slow": 2,
                     "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": true},
    "rope_parameters": {"type": "yarn", "rope_type": "yarn", "factor": 4, "rope_theta": 5000,
                     "original_max_position_embeddings": 64, "beta_fast": 31, "beta_slow": 2,
                     "mscale": 0.7, "mscale_all_dim": 0.5, "partial_rotary_factor": 1.0},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                     "weight_block_size": [64, 32], "scale_fmt": "ue8m0", "dequantize": false},
    "attention_bias": false, "tie_word_embeddings": false, "bos_token_id": 2,
    "eos_token_id": [3, 4]})");
}

TEST(ConfigFamilies, V2Lite) {
  const ModelConfig config = *Load(V2Lite());
  EXPECT_EQ(config.model_type, "deepseek_v2");
  EXPECT_EQ(config.router, RouterKind::kGreedy);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_EQ(config.q_lora_rank, 0);
  EXPECT_EQ(config.num_nextn_predict_layers, 0);
  EXPECT_NEAR(config.SoftmaxScale(), 0.11472139, 1e-8);
  EXPECT_EQ(config.RopeMscale(), 1.0f);
  EXPECT_FALSE(config.quantization.present);
}

TEST(ConfigFamilies, V2Routers) {
  // What published files leave out or hold as null; greedy has no groups whatever they say.
  json config = WithoutFields(V2Lite(), {"topk_method", "scoring_func", "n_group"});
  config["topk_group"] = nullptr;
  EXPECT_EQ(Load(config)->router, RouterKind::kGreedy);
  config["n_group"] = 5;
  EXPECT_EQ(Load(config)->n_group, 1);
  EXPECT_EQ(Load(config)->topk_group, 1);

  config = V2Lite();
  config["topk_method"] = "group_limited_greedy";
  config["n_group"] = 64;  // groups of one expert: their score is a maximum
  config["topk_group"] = 6;
  config["norm_topk_prob"] = true;
  EXPECT_EQ(Load(config)->router, RouterKind::kGroupLimitedGreedy);
  EXPECT_EQ(Load(config)->n_group, 64);
  EXPECT_TRUE(Load(config)->norm_topk_prob);
  config["topk_group"] = 5;
  EXPECT_NE(ErrorOf(config).find("num_experts_per_tok: 6 is more"), std::string::npos);
  config.erase("topk_group");
  EXPECT_NE(ErrorOf(config).find("topk_group: is missing"), std::string::npos);

  config = V2Lite();
  config["topk_method"] = "noaux_tc";
  EXPECT_NE(ErrorOf(config).find("topk_method: \"noaux_tc\""), std::string::npos);
  config = V2Lite();
  config["scoring_func"] = "sigmoid";
  EXPECT_NE(ErrorOf(config).find("scoring_func: \"sigmoid\""), std::string::npos);
}

TEST(ConfigFamilies, Glm) {
  const ModelConfig config = *Load(Glm());
  EXPECT_EQ(config.router, RouterKind::kNoauxTc);
  EXPECT_EQ(config.qk_head_dim(), 256);
  EXPECT_EQ(config.SoftmaxScale(), 0.0625f);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{154820, 154827, 154829}));
  EXPECT_FALSE(config.bos_token_id.has_value());
  EXPECT_FALSE(config.IsMoeLayer(0));
  EXPECT_TRUE(config.IsMoeLayer(1));

  // As transformers 5 writes it.
  json saved = WithoutFields(Glm(), {"rope_theta", "rope_scaling", "topk_method",
                                     "first_k_dense_replace", "partial_rotary_factor"});
  saved["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  saved["rope_interleave"] = true;
  saved["mlp_layer_types"] = json::array();
  for (int i = 0; i < 47; ++i) saved["mlp_layer_types"].push_back(i < 1 ? "dense" : "sparse");
  EXPECT_EQ(Load(saved)->first_k_dense_replace, 1);
  EXPECT_EQ(Load(saved)->rope_theta, 1e6);
  saved["mlp_layer_types"][5] = "dense";
  EXPECT_NE(ErrorOf(saved).find("mlp_layer_types: says \"dense\" of layer 5"), std::string::npos);
  saved["rope_interleave"] = false;
  EXPECT_NE(ErrorOf(saved).find("rope_interleave: false"), std::string::npos);
}

TEST(ConfigFamilies, AllLayersDenseAndNextnExport) {
  json config = Everything();
  config.erase("mlp_layer_types");
  config["num_hidden_layers"] = 1;
  config["first_k_dense_replace"] = 3;
  config["architectures"] = {"DeepseekV3ForCausalLMNextN"};
  EXPECT_FALSE(Load(config)->IsMoeLayer(0));
  EXPECT_TRUE(Load(config)->IsMoeLayer(1));
  config["mlp_layer_types"] = {"dense"};
  config.erase("first_k_dense_replace");
  EXPECT_EQ(Load(config)->first_k_dense_replace, 1);
}

TEST(ConfigFamilies, Quantization) {
  const auto load = [](json quantization) {
    json config = V2Lite();
    config["quantization_config"] = std::move(quantization);
    return Load(config);
  };
  const json full = Everything()["quantization_config"];
  EXPECT_EQ(load(full)->quantization.block_rows, 64);
  EXPECT_EQ(load(full)->quantization.block_columns, 32);
  json least = {{"quant_method", "fp8"}, {"weight_block_size", {1, 262144}}};
  EXPECT_EQ(load(least)->quantization.block_columns, 262144);
  least["scale_fmt"] = nullptr;
  least["modules_to_not_convert"] = {"lm_head"};
  least["ignored_layers"] = nullptr;
  least["unknown"] = nullptr;
  EXPECT_TRUE(load(least)->quantization.present);
  const struct {
    const char* patch;
    const char* error;
  } kCases[] = {
      {R"({"quant_method": "awq"})", "quant_method: \"awq\""},
      {R"({"quant_method": null})", "quant_method: is missing"},
      {R"({"fmt": "e5m2"})", "fmt: \"e5m2\""},
      {R"({"activation_scheme": "static"})", "activation_scheme: \"static\""},
      {R"({"weight_block_size": null})", "weight_block_size: is missing"},
      {R"({"weight_block_size": [128]})", "weight_block_size: [128] is not a list of 2"},
      {R"({"weight_block_size": [128, 0]})", "weight_block_size: 0"},
      {R"({"weight_block_size": [262145, 1]})", "weight_block_size: 262145"},
      {R"({"scale_fmt": "float"})", "scale_fmt: \"float\""},
      {R"({"dequantize": true})", "dequantize: true"},
      {R"({"bits": 4})", "bits: 4 is not supported"},
  };
  for (const auto& test : kCases) {
    json quantization = full;
    quantization.merge_patch(json::parse(test.patch));
    const Status status = load(quantization).status();
    EXPECT_NE(status.message().find(std::string("/config.json: quantization_config.") + test.error),
              std::string::npos)
        << test.patch << " gave: " << status.message();
  }
}

// What must happen when a field is absent or null. Everything else is wrong for every field.
struct Field {
  const char* pointer;
  bool required;
  bool any_number = false;  // 0 and whole numbers are legal values
};

constexpr Field kFields[] = {
    {"/architectures", false},
    {"/model_type", true},
    {"/torch_dtype", false},
    {"/dtype", false},
    {"/vocab_size", true},
    {"/hidden_size", true},
    {"/intermediate_size", true},
    {"/moe_intermediate_size", true},
    {"/num_hidden_layers", true},
    {"/num_nextn_predict_layers", false, true},
    {"/num_attention_heads", true},
    {"/q_lora_rank", false},
    {"/kv_lora_rank", true},
    {"/qk_nope_head_dim", true},
    {"/qk_rope_head_dim", true},
    {"/v_head_dim", true},
    {"/n_routed_experts", true},
    {"/n_shared_experts", true, true},
    {"/num_experts_per_tok", true},
    {"/n_group", true},
    {"/topk_group", true},
    {"/topk_method", false},
    {"/scoring_func", false},
    {"/norm_topk_prob", true},
    {"/routed_scaling_factor", true},
    {"/first_k_dense_replace", false},
    {"/moe_layer_freq", false},
    {"/mlp_layer_types", false},
    {"/hidden_act", false},
    {"/rms_norm_eps", true},
    {"/max_position_embeddings", true},
    {"/rope_theta", false},
    {"/rope_interleave", false},
    {"/partial_rotary_factor", false},
    {"/rope_scaling", false},
    {"/rope_scaling/type", false},
    {"/rope_scaling/rope_type", false},
    {"/rope_scaling/factor", true},
    {"/rope_scaling/original_max_position_embeddings", true},
    {"/rope_scaling/beta_fast", false},
    {"/rope_scaling/beta_slow", false},
    {"/rope_scaling/mscale", false, true},
    {"/rope_scaling/mscale_all_dim", false, true},
    {"/rope_scaling/truncate", false},
    {"/rope_parameters", false},
    {"/rope_parameters/factor", true},
    {"/rope_parameters/rope_theta", false},
    {"/rope_parameters/partial_rotary_factor", false},
    {"/quantization_config", false},
    {"/quantization_config/quant_method", true},
    {"/quantization_config/fmt", false},
    {"/quantization_config/activation_scheme", false},
    {"/quantization_config/weight_block_size", true},
    {"/quantization_config/scale_fmt", false},
    {"/quantization_config/dequantize", false},
    {"/attention_bias", false},
    {"/tie_word_embeddings", false},
    {"/bos_token_id", false, true},
    {"/eos_token_id", false, true},
};

// "a.b" of "/a/b".
std::string Dotted(const std::string& pointer) {
  std::string name = pointer.substr(1);
  const size_t slash = name.find('/');
  if (slash != std::string::npos) name[slash] = '.';
  return name;
}

// The other spelling is taken away, so that an error is not about the two being unlike.
json EverythingFor(const std::string& pointer) {
  json config = Everything();
  if (pointer.starts_with("/rope_scaling/")) {
    config.erase("rope_parameters");
  } else if (pointer.starts_with("/rope_parameters/")) {
    config.erase("rope_scaling");
  } else if (pointer == "/moe_layer_freq") {
    config.erase("mlp_layer_types");
  }
  return config;
}

void ExpectRefused(const Field& field, const json& config, const std::string& what) {
  const std::string error = ErrorOf(config);
  EXPECT_NE(error.find("/config.json: "), std::string::npos) << what << " gave: " << error;
  EXPECT_NE(error.find(Dotted(field.pointer)), std::string::npos) << what << " gave: " << error;
  EXPECT_LT(error.size(), 500u) << what;
}

TEST(ConfigFields, EveryFieldIsInTheTable) {
  ASSERT_TRUE(Load(Everything()).ok()) << ErrorOf(Everything());
  const json everything = Everything();
  for (const auto& [name, value] : everything.items()) {
    const bool known = std::any_of(std::begin(kFields), std::end(kFields),
                                   [&](const Field& field) { return "/" + name == field.pointer; });
    EXPECT_TRUE(known) << name;
  }
}

TEST(ConfigFields, AbsentOrNull) {
  for (const Field& field : kFields) {
    const json::json_pointer pointer(field.pointer);
    json config = EverythingFor(field.pointer);
    config[pointer] = nullptr;
    if (field.required) {
      ExpectRefused(field, config, std::string(field.pointer) + " null");
    } else {
      EXPECT_TRUE(Load(config).ok()) << field.pointer << " null gave: " << ErrorOf(config);
    }
    config[pointer.parent_pointer()].erase(pointer.back());
    if (field.required || std::string(field.pointer) == "/q_lora_rank") {
      ExpectRefused(field, config, std::string(field.pointer) + " absent");
    } else {
      EXPECT_TRUE(Load(config).ok()) << field.pointer << " absent gave: " << ErrorOf(config);
    }
  }
}

TEST(ConfigFields, WrongKinds) {
  const char* const kKinds[] = {"\"\"",
                                "\"no such word\"",
                                "-1",
                                "1e300",
                                "9223372036854775807",
                                "18446744073709551615",
                                "-9223372036854775808",
                                "1.5e9",
                                "{}",
                                "[]",
                                "[[[[]]]]",
                                "[null, {}]",
                                "{\"a\": 1}",
                                "\"\\u0000\\ud800\\udc00\""};
  for (const Field& field : kFields) {
    for (const char* kind : kKinds) {
      json config = EverythingFor(field.pointer);
      config[json::json_pointer(field.pointer)] = json::parse(kind);
      const std::string what = std::string(field.pointer) + " " + kind;
      // An empty list of end tokens is what it says.
      if (what == "/eos_token_id []") {
        EXPECT_TRUE(Load(config)->eos_token_ids.empty());
      } else if (what == "/rope_theta 1.5e9" || what == "/rope_parameters/rope_theta 1.5e9") {
        continue;  // legal alone, and unlike the other spelling's
      } else {
        ExpectRefused(field, config, what);
      }
    }
    if (field.any_number) continue;
    json config = EverythingFor(field.pointer);
    config[json::json_pointer(field.pointer)] = 0;
    // 0 dense layers is a number like any other; here it contradicts mlp_layer_types.
    ExpectRefused(field, config, std::string(field.pointer) + " 0");
  }
}

// What JSON cannot hold, or only in another reader's opinion.
TEST(ConfigFields, NotJson) {
  for (const Field& field : kFields) {
    for (const char* value : {"NaN", "-Infinity", "1e999", "01", "'a'", "tru", "\"\\ud800\""}) {
      json config = EverythingFor(field.pointer);
      config[json::json_pointer(field.pointer)] = "PLACE";
      std::string text = config.dump();
      text.replace(text.find("\"PLACE\""), 7, value);
      const Status status = LoadText(text).status();
      EXPECT_NE(status.message().find("/config.json: not valid JSON"), std::string::npos)
          << field.pointer << " " << value << " gave: " << status.message();
    }
  }
}

TEST(ConfigFields, NestsAndSizes) {
  std::string deep(40, '[');
  EXPECT_NE(LoadText(deep + std::string(40, ']')).status().message().find("levels of nesting"),
            std::string::npos);
  EXPECT_NE(LoadText(std::string(5 << 20, ' ')).status().message().find("more than the"),
            std::string::npos);
  // A long list is not printed into the error.
  json config = Everything();
  config["hidden_size"] = std::vector<int>(100'000, 7);
  EXPECT_NE(ErrorOf(config).find("hidden_size: a list or object of 100000 values"),
            std::string::npos);
}

// The largest legal config loads without memory to match, and nothing in it overflows.
TEST(ConfigFields, Huge) {
  json config = WithoutFields(Everything(), {"mlp_layer_types", "rope_parameters"});
  for (const char* name : {"hidden_size", "intermediate_size", "moe_intermediate_size"}) {
    config[name] = 1 << 18;
  }
  config["n_shared_experts"] = 1;
  config["vocab_size"] = config["max_position_embeddings"] = 1 << 20;
  config["num_hidden_layers"] = 1 << 10;
  config["num_attention_heads"] = 32;
  for (const char* name : {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    config[name] = 4096;
  }
  config["q_lora_rank"] = config["kv_lora_rank"] = 1 << 16;
  config["n_routed_experts"] = 128;
  config["num_experts_per_tok"] = 64;
  config["rope_scaling"]["original_max_position_embeddings"] = 1 << 20;
  config["rope_scaling"]["factor"] = 1e6;
  for (const double theta : {1.001, 1e12}) {
    for (const double beta : {1e-3, 1e6}) {
      config["rope_theta"] = theta;
      config["rope_scaling"]["beta_fast"] = config["rope_scaling"]["beta_slow"] = beta;
      const auto loaded = Load(config);
      ASSERT_TRUE(loaded.ok()) << ErrorOf(config);
      for (const float inv_freq : loaded->RopeInvFreq()) {
        EXPECT_TRUE(inv_freq >= 0.0f && inv_freq <= 1.0f) << inv_freq;
      }
      EXPECT_TRUE(std::isfinite(loaded->SoftmaxScale()));
      EXPECT_TRUE(std::isfinite(loaded->RopeMscale()));
    }
  }
}

// Every config that the project ships for tests.
TEST(ConfigFamilies, ShippedModels) {
  for (const char* name : {"tandem-tiny", "tandem-tiny-fp8", "v2-greedy", "v2-group-limited",
                           "v3-no-norm-topk", "v3-no-q-lora", "v3-odd-mtp"}) {
    const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/" + name;
    const auto config = LoadModelConfig(folder);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_TRUE(LoadGenerationConfig(folder, *config).ok()) << name;
    EXPECT_EQ(config->quantization.present, std::string(name) == "tandem-tiny-fp8");
  }
}

}  // namespace
}  // namespace tandem
