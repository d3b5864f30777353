// Made-up weights in a running engine: the text of cycling weights is known, and drafts are right
// as often as asked, whatever the layout; plain dummy weights work with the MTP module too.
#include <gtest/gtest.h>

#include "engine_run.h"
#include "model/config.h"
#include "model/cycling_tensors.h"
#include "model/test_folder.h"

namespace tandem {
namespace {

// Smaller than any published model, and FP8 with odd blocks: 40 does not divide the widths.
constexpr const char* kConfig = R"({
  "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "torch_dtype": "bfloat16",
  "vocab_size": 500, "hidden_size": 96, "intermediate_size": 112, "moe_intermediate_size": 56,
  "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "num_attention_heads": 6,
  "q_lora_rank": null, "kv_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
  "v_head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
  "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
  "routed_scaling_factor": 1.0, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
  "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 10000.0,
  "rope_scaling": null, "eos_token_id": 1,
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [40, 40]}})";

class DummyTest : public testing::Test {
 protected:
  DummyTest() { folder_.Write("config.json", kConfig); }

  EngineOptions Options(int tp, int dp, int k, std::optional<double> acceptance) {
    EngineOptions options = TestOptions(tp, dp, k);
    options.dummy_weights = true;
    options.dummy_seed = 5;
    options.dummy_acceptance = acceptance;
    return options;
  }

  TestFolder folder_;
};

TEST_F(DummyTest, DraftsAreRightAsOftenAsAsked) {
  for (const double acceptance : {0.0, 0.3, 0.8, 1.0}) {
    const CyclingTensors tensors(*LoadModelConfig(folder_.path()), 5, acceptance);
    for (const auto& [tp, dp] : {std::pair(1, 1), {4, 2}}) {
      for (const float temperature : {0.0f, 1.0f}) {
        GenerationRequest request = GreedyRequest({7, 9, 30}, 400);
        request.sampling.temperature = temperature;
        const EngineRun run = RunEngine(folder_.path(), Options(tp, dp, 3, acceptance), {request});
        int64_t token = 30, right = 0;
        for (const int32_t next : run.answers[0].tokens) {
          right += tensors.IsAccepted(token);
          token = CyclingTensors::Successor(token, 500);
          ASSERT_EQ(next, token);
        }
        // Most of the cycle was walked: the rate of its tokens is close to what was asked for.
        EXPECT_NEAR(static_cast<double>(right) / 400, acceptance, 0.08);
        // Every draft is tried whose predecessors were right, so the first of a window tells.
        const RequestStatistics& s = run.answers[0].statistics;
        const double first = static_cast<double>(s.accepted_per_position[0]) / s.verify_steps;
        EXPECT_NEAR(first, acceptance, 0.1);
        EXPECT_EQ(acceptance == 1.0, s.accepted == s.drafted);
      }
    }
  }
}

TEST_F(DummyTest, SameBitsInEveryLayout) {
  const GenerationRequest request = [] {
    GenerationRequest r = GreedyRequest(RandomPrompt(20, 500, 3), 30);
    r.logprobs = 2;
    return r;
  }();
  const EngineRun one = RunEngine(folder_.path(), Options(1, 1, 0, {}), {request});
  ASSERT_EQ(one.answers[0].tokens.size(), 30u);
  for (const auto& [tp, dp] : {std::pair(2, 1), {4, 2}, {8, 8}}) {
    const EngineRun other = RunEngine(folder_.path(), Options(tp, dp, 2, {}), {request});
    EXPECT_EQ(Bits(one.answers[0]), Bits(other.answers[0]));
  }
}

TEST_F(DummyTest, AnotherSeedIsAnotherModel) {
  GenerationRequest request = GreedyRequest({1, 2, 3}, 12);
  EngineOptions options = Options(1, 1, 0, {});
  const EngineRun one = RunEngine(folder_.path(), options, {request});
  options.dummy_seed = 6;
  EXPECT_NE(one.answers[0].tokens, RunEngine(folder_.path(), options, {request}).answers[0].tokens);
}

TEST_F(DummyTest, AnAcceptanceWithoutSpeculationIsRefused) {
  const Status status = Engine::Load(folder_.path(), Options(1, 1, 0, 0.5)).status();
  EXPECT_NE(status.message().find("no speculation"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tandem
