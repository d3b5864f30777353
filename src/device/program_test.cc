#include "device/program.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <vector>

namespace tandem {
namespace {

TEST(Program, OperationsSeeWhatEarlierOnesWroteOnAnyThread) {
  for (int threads : {1, 2, 5}) {
    ThreadTeam team(threads, /*spin=*/false);
    std::vector<int> a(threads), b(threads);
    int sum = 0;
    int factor = 1;
    Program program;
    program.Add({"a"}, [&](const Worker& w) { a[w.thread] = factor * (w.thread + 1); });
    program.Add({"b"}, [&](const Worker& w) {
      b[w.thread] = std::accumulate(a.begin(), a.end(), 0) + w.num_threads;
    });
    program.Add({"sum"}, [&](const Worker& w) {
      if (w.thread == 0) sum = std::accumulate(b.begin(), b.end(), 0);
    });
    for (factor = 1; factor < 50; ++factor) {  // refilled inputs, one recording
      ASSERT_TRUE(program.Run(team).ok());
      const int total = factor * threads * (threads + 1) / 2;
      ASSERT_EQ(sum, threads * (total + threads));
    }
  }
}

TEST(Program, AFailedCollectiveEndsTheRunOnAllThreads) {
  ThreadTeam team(3, /*spin=*/false);
  std::atomic<int> after = 0;
  Program program;
  program.AddCollective({"ok"}, [] { return Status(); });
  program.AddCollective({"bad"}, [] { return Internal("rank 2 is late"); });
  program.Add({"after"}, [&](const Worker&) { ++after; });
  EXPECT_EQ(program.num_collectives(), 2u);
  EXPECT_EQ(program.Run(team).message(), "rank 2 is late");
  EXPECT_EQ(after, 0);
}

// Thread 0 may be one operation ahead of threads that still look whether the last one failed.
TEST(Program, AFailureRightAfterAnOperationLeavesNoThreadBehind) {
  ThreadTeam team(4, /*spin=*/false);
  std::atomic<int> work = 0;
  Program program;
  program.Add({"work"}, [&](const Worker&) { ++work; });
  program.AddCollective({"ok"}, [] { return Status(); });
  program.AddCollective({"bad"}, [] { return Internal("late"); });
  for (int run = 1; run <= 2000; ++run) {
    ASSERT_EQ(program.Run(team).message(), "late");
    ASSERT_EQ(work, 4 * run);
  }
}

TEST(Program, AnEmptyProgramRuns) {
  ThreadTeam team(2, /*spin=*/false);
  EXPECT_TRUE(Program().Run(team).ok());
}

class Counter : public RowTracer {
 public:
  void Row(const OpTag& op, uint64_t, int64_t, int, const void*, size_t) override {
    names += op.name;
  }
  std::string names;
};

TEST(Program, TracesRunAfterTheirOperation) {
  ThreadTeam team(2, /*spin=*/false);
  std::vector<int> done(2);
  Program program;
  program.Add(
      {"x"}, [&](const Worker& w) { done[w.thread] = 1; },
      [&](RowTracer& tracer, const OpTag& op) {
        EXPECT_EQ(done[0] + done[1], 2);
        tracer.Row(op, 0, 0, 0, nullptr, 0);
      });
  Counter counter;
  ASSERT_TRUE(program.Run(team, &counter).ok());
  EXPECT_EQ(counter.names, "x");
}

}  // namespace
}  // namespace tandem
