#include "model/workspace.h"

#include <gtest/gtest.h>

#include <thread>

#include "model/test_models.h"

namespace tandem {
namespace {

// Ranks construct their models together: the gathered buffers are allocated collectively.
std::vector<int64_t> AllocatedBytes(const ModelWeights& weights, const RowLimits& limits) {
  const Layout& layout = weights.layout();
  const auto world = World::Make(layout.tp_size(), layout.attn_tp_size(), {.spin = false});
  std::vector<int64_t> bytes(layout.tp_size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    threads.emplace_back([&, rank] {
      const RankModel model(weights, KernelsFor(BestIsa()), rank, limits, LatentFormat::kFp8,
                            std::vector<LatentCache>(weights.num_layers()), world->world(rank),
                            world->group(rank));
      bytes[rank] = model.own_bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return bytes;
}

TEST(Workspace, CountEqualsWhatIsAllocated) {
  constexpr RowLimits kLimits{37, 21, 5};
  for (const char* name : kTestModels) {
    for (const Layout& layout : AllLayouts()) {
      for (const bool with_mtp : {true, false}) {
        if (!with_mtp && layout.tp_size() > 2) continue;
        const auto weights = LoadTestModel(name, layout, with_mtp);
        const WorkspaceBytes counted =
            CountWorkspace(weights->config(), layout, kLimits, LatentFormat::kFp8,
                           weights->has_mtp(), /*copying=*/false);
        const std::vector<int64_t> allocated = AllocatedBytes(*weights, kLimits);
        if (!weights->config().quantization.present) {
          EXPECT_EQ(counted.rank, allocated) << name << LayoutName(layout);
          continue;
        }
        for (int rank = 0; rank < layout.tp_size(); ++rank) {
          EXPECT_GE(counted.rank[rank], allocated[rank]) << name << LayoutName(layout);
        }
      }
    }
  }
}

TEST(Workspace, GatheredRowsExistOncePerMemory) {
  const ModelConfig config = TestModelConfig("tandem-tiny");
  const RowLimits limits{10, 4, 2};
  const auto count = [&](int tp, int dp, bool copying) {
    return CountWorkspace(config, *Layout::Make(tp, dp), limits, LatentFormat::kBf16, true,
                          copying);
  };
  // 10 rows of q_lora_rank and a slot per replica; 10 rows of hidden, experts and identity, and 4
  // head rows, per replica in the one world.
  const int64_t group = 10 * (128 + 72) * 4, world = (10 * (256 + 8 + 4) + 4 * 256) * 4;
  EXPECT_EQ(count(1, 1, false).shared, group + world);
  EXPECT_EQ(count(4, 1, false).shared, group + world);
  EXPECT_EQ(count(4, 2, false).shared, 2 * (group + world));
  EXPECT_EQ(count(4, 2, true).shared, 0);
  EXPECT_GT(count(4, 2, true).rank[3], count(4, 2, false).rank[3] + group + 2 * world);
}

}  // namespace
}  // namespace tandem
