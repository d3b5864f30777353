#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/test_folder.h"

namespace tandem {
namespace {

using nlohmann::json;

// DeepSeek-V3's own numbers.
json V3() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "max_position_embeddings": 163840, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                     "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "attention_bias": false, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1})");
}

Result<ModelConfig> Load(const json& config) {
  const TestFolder folder;
  folder.Write("config.json", config.dump());
  return LoadModelConfig(folder.path());
}

Result<GenerationDefaults> LoadGeneration(const std::string& text) {
  const TestFolder folder;
  folder.Write("generation_config.json", text);
  return LoadGenerationConfig(folder.path(), *Load(V3()));
}

TEST(Config, V3Numbers) {
  const ModelConfig config = *Load(V3());
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.q_lora_rank, 1536);
  EXPECT_EQ(config.qk_head_dim(), 192);
  EXPECT_EQ(config.topk_group, 4);
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{1});
  EXPECT_FALSE(config.IsMoeLayer(2));
  EXPECT_TRUE(config.IsMoeLayer(3));
  EXPECT_NEAR(config.SoftmaxScale(), 0.13523378, 1e-8);
  EXPECT_EQ(config.RopeMscale(), 1.0f);
}

TEST(Config, YarnFrequencies) {
  const std::vector<float> inv_freq = Load(V3())->RopeInvFreq();
  ASSERT_EQ(inv_freq.size(), 32u);
  const auto plain = [](int i) { return std::pow(10000.0, -2.0 * i / 64.0); };
  for (int i = 0; i <= 10; ++i) EXPECT_FLOAT_EQ(inv_freq[i], plain(i)) << i;
  for (int i = 11; i < 23; ++i) {
    const double ramp = (i - 10) / 13.0;
    EXPECT_FLOAT_EQ(inv_freq[i], plain(i) * (1 - ramp) + plain(i) / 40 * ramp) << i;
  }
  for (int i = 23; i < 32; ++i) EXPECT_FLOAT_EQ(inv_freq[i], plain(i) / 40) << i;
}

TEST(Config, MscaleOfV2LiteAndOfNoYarn) {
  json config = V3();
  config["rope_scaling"]["mscale"] = 0.707;
  config["rope_scaling"]["mscale_all_dim"] = 0.707;
  EXPECT_NEAR(Load(config)->SoftmaxScale(), 0.11472139, 1e-8);
  EXPECT_EQ(Load(config)->RopeMscale(), 1.0f);
  config["rope_scaling"]["mscale_all_dim"] = 0;
  EXPECT_NEAR(Load(config)->SoftmaxScale(), 0.07216878, 1e-8);
  EXPECT_NEAR(Load(config)->RopeMscale(), 1 + 0.0707 * std::log(40.0), 1e-6);

  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(Load(config)->rope_scaling.present);
  EXPECT_NEAR(Load(config)->SoftmaxScale(), 0.07216878, 1e-8);
  EXPECT_EQ(Load(config)->RopeMscale(), 1.0f);
  EXPECT_FLOAT_EQ(Load(config)->RopeInvFreq()[31], std::pow(10000.0, -62.0 / 64.0));
}

TEST(Config, MoeLayers) {
  json config = V3();
  config["moe_layer_freq"] = 2;
  config["first_k_dense_replace"] = 3;
  const ModelConfig loaded = *Load(config);
  EXPECT_FALSE(loaded.IsMoeLayer(2));
  EXPECT_FALSE(loaded.IsMoeLayer(3));
  EXPECT_TRUE(loaded.IsMoeLayer(4));
  EXPECT_TRUE(loaded.IsMoeLayer(61));  // the MTP layer, although 61 is odd
  config["first_k_dense_replace"] = 61;
  EXPECT_FALSE(Load(config)->IsMoeLayer(60));
  EXPECT_TRUE(Load(config)->IsMoeLayer(61));
}

TEST(Config, NewSpellings) {
  json config = V3();
  json rope = config["rope_scaling"];
  rope.erase("type");
  rope["rope_type"] = "yarn";
  rope["rope_theta"] = 50000;
  for (const char* name : {"rope_scaling", "rope_theta", "torch_dtype", "topk_method",
                           "scoring_func", "moe_layer_freq", "attention_bias"}) {
    config.erase(name);
  }
  config["rope_parameters"] = rope;
  config["dtype"] = "float32";
  config["rope_interleave"] = true;
  config["quantization_config"] = nullptr;
  config["eos_token_id"] = {1, 7};
  const ModelConfig loaded = *Load(config);
  EXPECT_EQ(loaded.rope_theta, 50000);
  EXPECT_EQ(loaded.rope_scaling.factor, 40);
  EXPECT_EQ(loaded.eos_token_ids, (std::vector<int32_t>{1, 7}));

  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  config["q_lora_rank"] = nullptr;
  config.erase("num_nextn_predict_layers");
  EXPECT_FALSE(Load(config)->rope_scaling.present);
  EXPECT_EQ(Load(config)->q_lora_rank, 0);
  EXPECT_EQ(Load(config)->num_nextn_predict_layers, 0);
}

// Each row: a change to V3's config (a merge patch; null removes a field) and what the error must
// name.
TEST(Config, RefusesByName) {
  const struct {
    const char* patch;
    const char* error;
  } kCases[] = {
      {R"({"model_type": "deepseek_v32"})", "model_type: \"deepseek_v32\" is not supported"},
      {R"({"model_type": null})", "model_type: is missing"},
      {R"({"architectures": ["DeepseekV2ForCausalLM"]})", "architectures: \"DeepseekV2"},
      {R"({"architectures": ["DeepseekV3ForCausalLM", "x"]})", "architectures: [\"DeepseekV3"},
      {R"({"architectures": "DeepseekV3ForCausalLM"})", "architectures: \"DeepseekV3"},
      {R"({"topk_method": "greedy"})", "topk_method: \"greedy\""},
      {R"({"scoring_func": "softmax"})", "scoring_func: \"softmax\""},
      {R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\""},
      {R"({"attention_bias": true})", "attention_bias: true"},
      {R"({"attention_bias": 0})", "attention_bias: 0"},
      {R"({"tie_word_embeddings": true})", "tie_word_embeddings: true"},
      {R"({"rope_interleave": false})", "rope_interleave: false"},
      {R"({"rope_interleave": null, "partial_rotary_factor": 0.5})", "partial_rotary_factor: 0.5"},
      {R"({"torch_dtype": "float16"})", "torch_dtype: \"float16\" is not supported: no kernel"},
      {R"({"dtype": 3})", "dtype: 3"},
      {R"({"num_nextn_predict_layers": 9})", "num_nextn_predict_layers: 9"},
      {R"({"vocab_size": 0})", "vocab_size: 0 is not a whole number from 1"},
      {R"({"vocab_size": null})", "vocab_size: is missing"},
      {R"({"vocab_size": "129280"})", "vocab_size: \"129280\""},
      {R"({"vocab_size": 129280.0})", "vocab_size: 129280.0"},
      {R"({"vocab_size": 18446744073709551615})", "vocab_size: 18446744073709551615"},
      {R"({"hidden_size": -1})", "hidden_size: -1"},
      {R"({"hidden_size": 1000000000000})", "hidden_size: 1000000000000"},
      {R"({"intermediate_size": true})", "intermediate_size: true"},
      {R"({"moe_intermediate_size": []})", "moe_intermediate_size: []"},
      {R"({"num_hidden_layers": 100000})", "num_hidden_layers: 100000"},
      {R"({"num_attention_heads": 0})", "num_attention_heads: 0"},
      {R"({"q_lora_rank": 0})", "q_lora_rank: 0"},
      {R"({"q_lora_rank": null})", "q_lora_rank: is missing"},
      {R"({"kv_lora_rank": {}})", "kv_lora_rank: {"},
      {R"({"qk_nope_head_dim": 0})", "qk_nope_head_dim: 0"},
      {R"({"qk_rope_head_dim": 63})", "qk_rope_head_dim: 63 is odd"},
      {R"({"v_head_dim": 0})", "v_head_dim: 0"},
      {R"({"n_shared_experts": -1})", "n_shared_experts: -1"},
      {R"({"n_routed_experts": 250})", "n_group: 8 does not divide n_routed_experts"},
      {R"({"n_group": 256})", "n_group: 256 leaves fewer than two experts"},
      {R"({"topk_group": 9})", "topk_group: 9 is more than n_group"},
      {R"({"num_experts_per_tok": 129})", "num_experts_per_tok: 129 is more than"},
      {R"({"first_k_dense_replace": null})", "first_k_dense_replace: is missing"},
      {R"({"moe_layer_freq": 0})", "moe_layer_freq: 0"},
      {R"({"norm_topk_prob": 1})", "norm_topk_prob: 1"},
      {R"({"norm_topk_prob": null})", "norm_topk_prob: is missing"},
      {R"({"routed_scaling_factor": 0})", "routed_scaling_factor: 0"},
      {R"({"rms_norm_eps": "tiny"})", "rms_norm_eps: \"tiny\""},
      {R"({"max_position_embeddings": 0})", "max_position_embeddings: 0"},
      {R"({"rope_theta": 1})", "rope_theta: 1"},
      {R"({"rope_theta": null})", "rope_theta: is missing"},
      {R"({"rope_scaling": "yarn"})", "rope_scaling: \"yarn\" is not an object"},
      {R"({"rope_parameters": {"rope_type": "default"}})", "rope_scaling: is not what rope_par"},
      {R"({"rope_parameters": {"rope_theta": 5, "rope_type": "default"}})",
       "rope_theta: 10000 is not what rope_parameters says"},
      {R"({"num_attention_heads": 4096})", "num_attention_heads: 4096 times qk_nope"},
      {R"({"n_routed_experts": 4096})", "n_routed_experts: 4096 times num_hidden_layers"},
      {R"({"v_head_dim": 4000})", "num_attention_heads: 128 times qk_nope_head_dim + v_head_dim"},
      {R"({"n_shared_experts": 129})", "n_shared_experts: 129 times moe_intermediate_size"},
      {R"({"mlp_layer_types": ["dense"]})", "mlp_layer_types: [\"dense\"] is not a list of 61"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.type: \"linear\""},
      {R"({"rope_scaling": {"type": null}})", "rope_scaling.rope_type: is missing"},
      {R"({"rope_scaling": {"factor": 0.5}})", "rope_scaling.factor: 0.5"},
      {R"({"rope_scaling": {"factor": null}})", "rope_scaling.factor: is missing"},
      {R"({"rope_scaling": {"original_max_position_embeddings": 0}})",
       "rope_scaling.original_max_position_embeddings: 0"},
      {R"({"rope_scaling": {"beta_fast": 0.5}})", "rope_scaling.beta_fast: is less"},
      {R"({"rope_scaling": {"beta_slow": "1"}})", "rope_scaling.beta_slow: \"1\""},
      {R"({"rope_scaling": {"mscale": -1}})", "rope_scaling.mscale: -1"},
      {R"({"rope_scaling": {"attention_factor": 1.2}})", "rope_scaling.attention_factor: 1.2"},
      {R"({"eos_token_id": 129280})", "eos_token_id: 129280 is not a token id"},
      {R"({"eos_token_id": [1, -2]})", "eos_token_id: -2 is not a token id"},
      {R"({"bos_token_id": "a"})", "bos_token_id: \"a\""},
  };
  for (const auto& test : kCases) {
    json config = V3();
    config.merge_patch(json::parse(test.patch));
    const Status status = Load(config).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << test.patch;
    EXPECT_NE(status.message().find(std::string("/config.json: ") + test.error), std::string::npos)
        << test.patch << " gave: " << status.message();
  }
}

TEST(Config, BadFiles) {
  const TestFolder folder;
  EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), StatusCode::kNotFound);
  for (const char* text : {"", "[]", "{", "{\"vocab_size\": 1e999}", "\xff\xfe"}) {
    folder.Write("config.json", text);
    EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), StatusCode::kInvalidArgument) << text;
  }
  folder.Write("config.json", std::string(200'000, '['));
  EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), StatusCode::kInvalidArgument);
}

TEST(Config, TandemTiny) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/tandem-tiny";
  const ModelConfig config = *LoadModelConfig(folder);
  EXPECT_EQ(config.vocab_size, 3072);
  EXPECT_EQ(config.num_nextn_predict_layers, 1);
  EXPECT_EQ(config.rope_scaling.factor, 8.0);
  EXPECT_EQ(LoadGenerationConfig(folder, config)->eos_token_ids, std::vector<int32_t>{1});
}

TEST(GenerationConfig, AbsentStaysAbsent) {
  const TestFolder folder;
  const GenerationDefaults none = *LoadGenerationConfig(folder.path(), *Load(V3()));
  EXPECT_EQ(none.eos_token_ids, std::vector<int32_t>{1});  // config.json's
  EXPECT_EQ(none.bos_token_id, 0);
  EXPECT_FALSE(none.do_sample || none.temperature || none.top_k || none.top_p || none.min_p);

  const GenerationDefaults some = *LoadGeneration(R"({"eos_token_id": [3, 4], "top_p": null})");
  EXPECT_EQ(some.eos_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_FALSE(some.do_sample || some.temperature || some.top_p);
}

TEST(GenerationConfig, Values) {
  const GenerationDefaults r1 = *LoadGeneration(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": -1, "min_p": 0.1})");
  EXPECT_EQ(r1.do_sample, true);
  EXPECT_EQ(r1.temperature, 0.6f);
  EXPECT_EQ(r1.top_p, 0.95f);
  EXPECT_EQ(r1.top_k, 0);
  EXPECT_EQ(r1.min_p, 0.1f);
  EXPECT_EQ(LoadGeneration(R"({"do_sample": false, "temperature": 0.6})")->temperature, 0.0f);
}

TEST(GenerationConfig, RefusesByName) {
  for (const char* text :
       {R"({"temperature": -0.1})", R"({"temperature": "1"})", R"({"top_p": 0})",
        R"({"top_p": 1.5})", R"({"top_k": -2})", R"({"top_k": 1.5})", R"({"min_p": 2})",
        R"({"do_sample": "no"})", R"({"eos_token_id": "a"})", R"({"bos_token_id": 129280})"}) {
    const Status status = LoadGeneration(text).status();
    const std::string name = json::parse(text).begin().key();
    EXPECT_NE(status.message().find("/generation_config.json: " + name + ": "), std::string::npos)
        << text << " gave: " << status.message();
  }
  EXPECT_FALSE(LoadGeneration("3").ok());
}

}  // namespace
}  // namespace tandem
