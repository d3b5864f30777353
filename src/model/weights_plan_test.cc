// A plan is what Load then holds, to the byte, and needs no weights.
#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/dummy_tensors.h"
#include "model/test_models.h"

namespace tandem {
namespace {

void ExpectPlanIsLoad(const WeightPlan& plan, const ModelWeights& weights) {
  EXPECT_EQ(plan.mtp, weights.mtp_state());
  EXPECT_EQ(plan.shared_bytes, weights.SharedBytes());
  int64_t total = plan.shared_bytes;
  for (int rank = 0; rank < weights.layout().tp_size(); ++rank) {
    EXPECT_EQ(plan.rank_bytes[rank], weights.RankBytes(rank)) << rank;
    total += plan.rank_bytes[rank];
  }
  EXPECT_EQ(plan.total_bytes(), total);
  int64_t formats = 0;
  for (const int64_t bytes : plan.format_bytes) formats += bytes;
  EXPECT_EQ(formats, total);
}

TEST(WeightPlan, IsWhatLoadHolds) {
  for (const std::string model : kTestModels) {
    const ModelConfig config = TestModelConfig(model);
    for (const Layout& layout : AllLayouts()) {
      for (const bool with_mtp : {false, true}) {
        SCOPED_TRACE(model + " " + LayoutName(layout) + (with_mtp ? " with MTP" : ""));
        const auto checkpoint = std::move(*Checkpoint::Open(TestModelFolder(model)));
        const auto plan =
            ModelWeights::Plan(*checkpoint, config, layout, TestLoadOptions(with_mtp));
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        ExpectPlanIsLoad(*plan, *LoadTestModel(model, layout, with_mtp));
      }
    }
  }
}

TEST(WeightPlan, OfDummiesIsWhatLoadHolds) {
  for (const char* model : {"tandem-tiny-fp8", "v3-odd-mtp"}) {
    const ModelConfig config = TestModelConfig(model);
    for (const Layout& layout : AllLayouts()) {
      SCOPED_TRACE(std::string(model) + " " + LayoutName(layout));
      DummyTensors tensors(config, 3);
      const auto plan = ModelWeights::Plan(tensors, config, layout, TestLoadOptions(true));
      const auto weights = ModelWeights::Load(tensors, config, layout, TestLoadOptions(true));
      ExpectPlanIsLoad(*plan, **weights);
      EXPECT_EQ((*plan).mtp, MtpState::kLoaded);
    }
  }
}

WeightPlan PlanOfConfig(const std::string& name, bool with_mtp) {
  const auto config = LoadModelConfig(std::string(TANDEM_SOURCE_DIR) + "/configs/" + name);
  EXPECT_TRUE(config.ok()) << config.status().message();
  DummyTensors tensors(*config, 1);
  const auto plan =
      ModelWeights::Plan(tensors, *config, *Layout::Make(8, 8), TestLoadOptions(with_mtp));
  EXPECT_TRUE(plan.ok());
  return *plan;
}

// The published numbers (MODEL.md 3.1, 5), and the exact ones by hand.
TEST(WeightPlan, CountsDeepSeekV3) {
  const WeightPlan plan = PlanOfConfig("deepseek-v3", /*with_mtp=*/true);
  const int64_t hidden = 7168, table = int64_t{129280} * hidden;
  const int64_t attention = 1536 * hidden + 1536 + 24576 * 1536 + 576 * hidden + 512 + 32768 * 512 +
                            hidden * 16384 + 2 * hidden;
  const int64_t expert = 3 * 2048 * hidden;
  const int64_t moe = attention + 257 * expert + 256 * hidden + 256;
  const int64_t active_moe = attention + 9 * expert + 256 * hidden + 256;
  const int64_t dense = attention + 3 * 18432 * hidden;
  EXPECT_EQ(plan.target.total, 2 * table + hidden + 3 * dense + 58 * moe);
  EXPECT_EQ(plan.target.active, 2 * table + hidden + 3 * dense + 58 * active_moe);
  EXPECT_EQ((plan.target.total + 500'000'000) / 1'000'000'000, 671);
  EXPECT_NEAR(static_cast<double>(plan.target.active), 37e9, 0.6e9);  // "36.7 billion"
  EXPECT_EQ(plan.mtp_modules.total, moe + 2 * hidden * hidden + 3 * hidden);
  EXPECT_EQ(plan.mtp_modules.active, active_moe + 2 * hidden * hidden + 3 * hidden);

  // FP8: a byte per weight and 4 per block of 128 x 128, edges padded.
  const int64_t blocks = 3 * (2048 / 128) * (hidden / 128);
  EXPECT_GE(plan.bytes(WeightGroup::kRoutedExperts), 58 * 256 * (expert + 4 * blocks));
  // A scale per column and block along K: 4 bytes for 128 weights.
  EXPECT_EQ(plan.bytes(WeightGroup::kRoutedExperts), 58 * 256 * (expert + expert / 128 * 4));
  EXPECT_EQ(plan.bytes(WeightGroup::kEmbedding), 2 * table);
  EXPECT_EQ(plan.bytes(WeightGroup::kHead), 2 * table);
  EXPECT_EQ(plan.bytes(WeightGroup::kRotary), kTestPositions * 64 * 4);
  EXPECT_EQ(plan.bytes(WeightType::kBf16), 2 * 2 * table + 2 * 2 * hidden * hidden);

  const WeightPlan without = PlanOfConfig("deepseek-v3", /*with_mtp=*/false);
  EXPECT_EQ(without.mtp, MtpState::kLeftOut);
  EXPECT_EQ(without.mtp_modules.total, 0);
  EXPECT_EQ(without.bytes(WeightGroup::kMtp), 0);
  EXPECT_EQ(without.target.total, plan.target.total);
  EXPECT_EQ(plan.total_bytes() - without.total_bytes(), plan.bytes(WeightGroup::kMtp));
}

TEST(WeightPlan, Fp8IsHalfOfBf16) {
  const WeightPlan bf16 = PlanOfConfig("lite9", true), fp8 = PlanOfConfig("lite9-fp8", true);
  EXPECT_EQ(bf16.target.total, fp8.target.total);
  EXPECT_EQ(bf16.bytes(WeightType::kFp8), 0);
  const double ratio = static_cast<double>(fp8.bytes(WeightGroup::kRoutedExperts)) /
                       static_cast<double>(bf16.bytes(WeightGroup::kRoutedExperts));
  EXPECT_NEAR(ratio, 0.5 * (1 + 4.0 / 128), 1e-9);
}

}  // namespace
}  // namespace tandem
