#include "engine/memory_budget.h"

#include <gtest/gtest.h>

#include <limits>

#include "model/test_models.h"

namespace tandem {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr RowLimits kLimits{100, 20, 4};

EngineOptions Options() {
  EngineOptions options;
  options.num_draft_tokens = 2;
  options.num_threads = 4;
  options.block_size = 16;
  options.max_num_seqs = 4;
  options.context_length = 1000;
  options.memory_fraction = 0.5;
  return options;
}

WeightPlan Weights(const Layout& layout) {
  WeightPlan weights;
  weights.group_bytes[static_cast<int>(WeightGroup::kRoutedExperts)] = 100 << 20;
  weights.rank_bytes.assign(layout.tp_size(), (80 << 20) / layout.tp_size());
  weights.shared_bytes = 20 << 20;
  return weights;
}

MemoryBudget Plan(const EngineOptions& options, const Layout& layout, int64_t machine) {
  return PlanMemory(TestModelConfig("tandem-tiny"), layout, options, kLimits, Weights(layout),
                    machine, 30 << 20);
}

TEST(MemoryBudget, ThePoolTakesWhatTheFractionLeavesAndNeverMoreThanCanBeUsed) {
  const Layout layout = *Layout::Make(4, 2);
  EngineOptions options = Options();
  const MemoryBudget large = Plan(options, layout, 64 * kGiB);
  EXPECT_EQ(large.num_blocks, 4 * 63);  // sequences x context
  EXPECT_EQ(large.token_bytes, 5 * (128 + 16) * 2);
  EXPECT_EQ(large.draft_token_bytes, (128 + 16) * 2);
  EXPECT_EQ(large.num_pools, 2);
  EXPECT_TRUE(large.fits());
  // A machine of which half is just short of everything above.
  const int64_t machine = 2 * large.total_bytes() - 2 * large.token_bytes;
  const MemoryBudget tight = Plan(options, layout, machine);
  EXPECT_EQ(tight.num_blocks, large.num_blocks - 1);
  EXPECT_LE(tight.total_bytes(), machine / 2);
  EXPECT_GT(tight.total_bytes() + 2 * 16 * tight.token_bytes, machine / 2);
}

TEST(MemoryBudget, MaxTotalTokensIsThePoolWhateverTheFraction) {
  const Layout layout = *Layout::Make(2, 1);
  EngineOptions options = Options();
  options.max_total_tokens = 333;
  EXPECT_EQ(Plan(options, layout, 64 * kGiB).kv_tokens(), 320);
  const MemoryBudget budget = Plan(options, layout, 100 << 20);  // less than the weights
  EXPECT_EQ(budget.kv_tokens(), 320);
  EXPECT_FALSE(budget.fits());
  EXPECT_NE(budget.WhyNot().find("the machine has 100.0 MiB"), std::string::npos);
  EXPECT_NE(budget.WhyNot().find("weights 100.0 MiB"), std::string::npos);
  options.max_total_tokens = std::numeric_limits<int64_t>::max();
  options.max_num_seqs = 4096;
  options.context_length = 1 << 20;
  EXPECT_FALSE(Plan(options, layout, 64 * kGiB).fits());
  options.max_total_tokens = 15;
  EXPECT_NE(Plan(options, layout, 64 * kGiB).WhyNot().find("one block of 16 tokens"),
            std::string::npos);
}

TEST(MemoryBudget, PartsOfAllRanksAndWhatTheyShareAreTheWhole) {
  for (const auto& [tp, dp] : {std::pair(1, 1), {4, 1}, {4, 2}, {8, 8}}) {
    for (const bool copying : {false, true}) {
      const Layout layout = *Layout::Make(tp, dp);
      EngineOptions options = Options();
      options.copying_communicator = copying;
      const MemoryBudget budget = Plan(options, layout, 64 * kGiB);
      EXPECT_EQ(budget.num_pools, copying ? tp : dp);
      int64_t sum = budget.process_bytes + budget.weights.shared_bytes + budget.workspace.shared;
      for (int rank = 0; rank < tp; ++rank) sum += budget.rank_bytes(layout, rank);
      EXPECT_EQ(sum, budget.total_bytes());
      const std::string text = budget.Text(layout);
      EXPECT_NE(text.find("routed experts 100.0 MiB"), std::string::npos) << text;
      EXPECT_NE(text.find("rank " + std::to_string(tp - 1)), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace tandem
