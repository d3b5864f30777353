#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

namespace tandem {
namespace {

TEST(BlockPool, PromisesAreKeptAndNeverExceedThePool) {
  BlockPool pool(10);
  EXPECT_TRUE(pool.Promise(6));
  EXPECT_FALSE(pool.Promise(5));
  EXPECT_TRUE(pool.Promise(4));
  EXPECT_FALSE(pool.Promise(1));
  EXPECT_TRUE(pool.Promise(0));
  std::set<int32_t> blocks;
  for (int i = 0; i < 10; ++i) blocks.insert(pool.Take());
  EXPECT_EQ(blocks.size(), 10u);
  EXPECT_EQ(pool.num_free(), 0);
  pool.Return({blocks.begin(), blocks.end()}, 10);
  EXPECT_EQ(pool.num_free(), 10);
  EXPECT_EQ(pool.num_promised(), 0);
}

TEST(BlockPool, UnusedPromisesCanBeGivenBack) {
  BlockPool pool(4);
  EXPECT_TRUE(pool.Promise(4));
  const std::vector<int32_t> one = {pool.Take()};
  pool.Return(one, 4);
  EXPECT_TRUE(pool.Promise(4));
  EXPECT_EQ(pool.Take(), one[0]);
}

// Sequences of random length come, take blocks in any order, and end at any point.
TEST(BlockPool, ABlockHasOneOwnerAndEveryPromiseIsKept) {
  struct Owner {
    int32_t promised = 0;
    std::vector<int32_t> blocks;
  };
  std::mt19937 rng(1);
  BlockPool pool(37);
  std::vector<Owner> owners;
  std::set<int32_t> taken;
  int32_t promised = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (const int32_t count = static_cast<int32_t>(rng() % 12); rng() % 3 == 0) {
      EXPECT_EQ(pool.Promise(count), promised + count <= 37);
      if (promised + count > 37) continue;
      promised += count;
      owners.push_back({count, {}});
    } else if (!owners.empty()) {
      Owner& owner = owners[rng() % owners.size()];
      if (rng() % 5 == 0) {
        pool.Return(owner.blocks, owner.promised);
        promised -= owner.promised;
        for (const int32_t block : owner.blocks) taken.erase(block);
        std::swap(owner, owners.back());
        owners.pop_back();
      } else if (static_cast<int32_t>(owner.blocks.size()) < owner.promised) {
        owner.blocks.push_back(pool.Take());
        EXPECT_TRUE(taken.insert(owner.blocks.back()).second);
        EXPECT_TRUE(owner.blocks.back() >= 0 && owner.blocks.back() < 37);
      }
    }
    ASSERT_EQ(pool.num_promised(), promised);
    ASSERT_EQ(pool.num_free(), 37 - static_cast<int32_t>(taken.size()));
  }
}

TEST(BlockPool, AnEmptyPoolPromisesNothing) {
  BlockPool pool(0);
  EXPECT_TRUE(pool.Promise(0));
  EXPECT_FALSE(pool.Promise(1));
}

TEST(BlockPoolDeathTest, TakingMoreThanPromisedIsABug) {
  BlockPool pool(3);
  EXPECT_TRUE(pool.Promise(1));
  EXPECT_EQ(pool.Take(), 0);
  EXPECT_DEATH(pool.Take(), "CHECK failed");
}

TEST(BlockPoolDeathTest, ReturningTwiceIsABug) {
  BlockPool pool(2);
  EXPECT_TRUE(pool.Promise(2));
  const std::vector<int32_t> one = {pool.Take()};
  pool.Return(one, 1);
  EXPECT_DEATH(pool.Return(one, 0), "CHECK failed");
}

}  // namespace
}  // namespace tandem
