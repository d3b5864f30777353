#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>

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

TEST(BlockPoolDeathTest, ReturningTwiceIsABug) {
  BlockPool pool(2);
  EXPECT_TRUE(pool.Promise(2));
  const std::vector<int32_t> one = {pool.Take()};
  pool.Return(one, 1);
  EXPECT_DEATH(pool.Return(one, 0), "CHECK failed");
}

}  // namespace
}  // namespace tandem
