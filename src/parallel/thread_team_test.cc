#include "parallel/thread_team.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

// Both ways of waiting, and more threads than cores.
class ThreadTeamTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  bool spin() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamTest,
                         testing::Combine(testing::Values(1, 2, 3, 8), testing::Bool()));

TEST_P(ThreadTeamTest, RunsWorkOnceOnEveryThread) {
  ThreadTeam team(size(), spin());
  ASSERT_EQ(team.size(), size());
  std::vector<int> calls(size(), 0);
  for (int run = 1; run <= 200; ++run) {
    team.Run([&](int thread) { ++calls[thread]; });
    EXPECT_EQ(calls, std::vector<int>(size(), run));
  }
}

// Plain memory: a barrier that lets a thread through early shows as a wrong sum (or a race under
// the sanitizer).
TEST_P(ThreadTeamTest, BarrierSeparatesPhases) {
  ThreadTeam team(size(), spin());
  std::vector<int> values(size(), 0);
  std::vector<int> wrong(size(), 0);
  constexpr int kRounds = 300;
  team.Run([&](int thread) {
    for (int round = 1; round <= kRounds; ++round) {
      values[thread] = round;
      team.barrier().Wait();
      for (int value : values) wrong[thread] += value != round;
      team.barrier().Wait();
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(size(), 0));
}

TEST_P(ThreadTeamTest, BreakEndsWaitsForGood) {
  Barrier barrier(size() + 1, spin());
  std::vector<std::thread> threads;
  std::vector<Arrival> first(size());
  std::vector<Arrival> second(size());
  for (int i = 0; i < size(); ++i) {
    threads.emplace_back([&, i] {
      first[i] = barrier.WaitFor(1000);
      second[i] = barrier.WaitFor(1000);
    });
  }
  while (barrier.arrived() < size()) std::this_thread::yield();
  barrier.Break();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, std::vector<Arrival>(size(), Arrival::kBroken));
  EXPECT_EQ(second, std::vector<Arrival>(size(), Arrival::kBroken));
  EXPECT_EQ(barrier.WaitFor(1000), Arrival::kBroken);
  barrier.Wait();
}

TEST_P(ThreadTeamTest, ExactlyOneThreadTimesOut) {
  Barrier barrier(size() + 1, spin());
  std::vector<std::thread> threads;
  std::vector<Arrival> arrivals(size());
  for (int i = 0; i < size(); ++i) {
    threads.emplace_back([&, i] { arrivals[i] = barrier.WaitFor(0.01); });
  }
  for (std::thread& thread : threads) thread.join();
  int timed_out = 0;
  for (Arrival arrival : arrivals) {
    EXPECT_NE(arrival, Arrival::kMet);
    timed_out += arrival == Arrival::kTimedOut;
  }
  EXPECT_EQ(timed_out, 1);
  EXPECT_EQ(barrier.WaitFor(1000), Arrival::kBroken);
}

}  // namespace
}  // namespace tandem
