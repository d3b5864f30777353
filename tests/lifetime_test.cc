// Requests and engines from start to end: every way to end gives all blocks back, idle engines
// sleep and wake, a stuck rank is named.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <condition_variable>
#include <latch>
#include <thread>

#include "engine_run.h"
#include "made_model.h"

namespace tandem {
namespace {

const MadeModel& Model() {
  static const MadeModel model;
  return model;
}

// Collects events of requests and lets a test wait for them.
class Mailbox {
 public:
  EventSink Sink(uint64_t id) {
    return [this, id](TokenEvent event) {
      const std::lock_guard lock(mutex_);
      State& state = states_[id];
      state.tokens.insert(state.tokens.end(), event.tokens.begin(), event.tokens.end());
      state.reason = event.finish_reason;
      state.error = event.error;
      changed_.notify_all();
    };
  }
  FinishReason AwaitEnd(uint64_t id) {
    return Await(id, [](const State& s) { return s.reason != FinishReason::kNone; }).reason;
  }
  void AwaitTokens(uint64_t id, size_t count) {
    Await(id, [=](const State& s) { return s.tokens.size() >= count; });
  }
  std::vector<int32_t> Tokens(uint64_t id) {
    return Await(id, [](const State&) { return true; }).tokens;
  }
  std::string Error(uint64_t id) {
    return Await(id, [](const State&) { return true; }).error;
  }

 private:
  struct State {
    std::vector<int32_t> tokens;
    FinishReason reason = FinishReason::kNone;
    std::string error;
  };

  template <typename Condition>
  State Await(uint64_t id, Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition(states_[id]); });
    return states_[id];
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, State> states_;
};

GenerationRequest Request(uint64_t id, int32_t prompt, int32_t max_tokens) {
  GenerationRequest request =
      GreedyRequest(RandomPrompt(prompt, MadeModel::kVocab, static_cast<uint32_t>(id)), max_tokens);
  request.id = id;
  return request;
}

// Waits until the engine says that nothing is running, queued or stored.
void AwaitDrain(const Engine& engine) {
  const auto drained = [&] {
    for (const ReplicaStatus& r : engine.status().replicas) {
      if (r.running + r.queued > 0 || r.kv_tokens_used > 0) return false;
    }
    return true;
  };
  while (!drained()) std::this_thread::yield();
}

TEST(Lifetime, AllBlocksAreFreeAfterEveryWayToEnd) {
  EngineOptions options = TestOptions(4, 2, 3);
  options.max_num_seqs = 2;
  options.chunked_prefill_size = 16;
  Observer observer;
  options.hooks = observer.Hooks();
  auto engine = LoadOrDie(Model().folder(), options);
  Mailbox mailbox;
  const auto submit = [&](GenerationRequest request, int replica) {
    request.data_parallel_rank = replica;
    ASSERT_TRUE(engine->Submit(request, mailbox.Sink(request.id)).ok());
  };
  engine->Start();
  for (int round = 0; round < 3; ++round) {
    const uint64_t id = round * 10;
    const int replica = round % 2;
    GenerationRequest stopping = Request(id, 9, 100);
    stopping.stop_token_ids = {Model().Expect(stopping, 0).tokens[17]};
    submit(stopping, replica);
    submit(Request(id + 1, 40, 11), replica);        // max_tokens
    submit(Request(id + 2, 240, 1000), replica);     // context
    submit(Request(id + 3, 3, 200), 1 - replica);    // cancelled while it decodes
    submit(Request(id + 4, 250, 200), 1 - replica);  // cancelled, perhaps while its prompt is read
    submit(Request(id + 5, 3, 200), 1 - replica);    // cancelled in the queue
    GenerationRequest late = Request(id + 6, 3, 200);
    late.arrival_step = 1 << 20;  // the latest legal one: not within this test
    submit(late, replica);
    mailbox.AwaitTokens(id + 3, 5);
    for (const uint64_t cancelled : {5, 4, 3, 6, 7})
      engine->Cancel(id + cancelled);  // 7 is unknown
    EXPECT_EQ(mailbox.AwaitEnd(id), FinishReason::kStop);
    EXPECT_EQ(mailbox.Tokens(id).size(), 18u);
    EXPECT_EQ(mailbox.AwaitEnd(id + 1), FinishReason::kLength);
    EXPECT_EQ(mailbox.Tokens(id + 1).size(), 11u);
    EXPECT_EQ(mailbox.AwaitEnd(id + 2), FinishReason::kLength);
    EXPECT_EQ(mailbox.Tokens(id + 2).size(), 16u);
    for (const uint64_t cancelled : {4, 5, 6}) {
      EXPECT_EQ(mailbox.AwaitEnd(id + cancelled), FinishReason::kCancelled);
    }
    mailbox.AwaitEnd(id + 3);  // cancelled, unless it was faster
    AwaitDrain(*engine);
    engine->Cancel(id + 3);  // has ended: ignored
  }
  engine.reset();
  for (const auto& [rank, observation] : observer.steps().rbegin()->second) {
    EXPECT_LE(observation.blocks_in_use, 0) << rank;
  }
}

TEST(Lifetime, DestroyedWhileBusyEndsEverythingAsCancelled) {
  EngineOptions options = TestOptions(4, 2, 3);
  options.max_num_seqs = 1;
  Mailbox mailbox;
  {
    auto engine = LoadOrDie(Model().folder(), options);
    for (uint64_t id = 0; id < 6; ++id) {
      GenerationRequest request = Request(id, 3, 250);
      if (id >= 4) request.arrival_step = 1 << 20;
      ASSERT_TRUE(engine->Submit(request, mailbox.Sink(id)).ok());
    }
    engine->Start();
    mailbox.AwaitTokens(0, 1);
  }
  for (uint64_t id = 0; id < 6; ++id) {
    const FinishReason reason = mailbox.AwaitEnd(id);
    if (id >= 4) {
      EXPECT_EQ(reason, FinishReason::kCancelled);
    }
    EXPECT_NE(reason, FinishReason::kError);
  }
}

TEST(Lifetime, DestroyedBeforeItStarted) {
  Mailbox mailbox;
  {
    auto engine = LoadOrDie(Model().folder(), TestOptions(2, 2, 1));
    ASSERT_TRUE(engine->Submit(Request(0, 3, 10), mailbox.Sink(0)).ok());
  }
  EXPECT_EQ(mailbox.AwaitEnd(0), FinishReason::kCancelled);
}

// A bound on processor time, not on time: a rank that spins would take all of the second.
TEST(Idle, TakesNoProcessorTime) {
  EngineOptions options = TestOptions(8, 8, 3);
  options.num_threads = 16;
  const auto engine = LoadOrDie(Model().folder(), options);
  Answers(*engine, {Request(0, 5, 20)});
  AwaitDrain(*engine);
  const auto seconds = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(seconds() - before, 0.05);
}

// A lost wake-up leaves a request unanswered, and the test stands still.
TEST(Idle, WakesForEveryRequest) {
  const auto engine = LoadOrDie(Model().folder(), TestOptions(8, 8, 2));
  engine->Start();
  Mailbox mailbox;
  const auto submit_and_wait = [&](uint64_t id) {
    ASSERT_TRUE(engine->Submit(Request(id, 2, 4), mailbox.Sink(id)).ok());
    EXPECT_EQ(mailbox.AwaitEnd(id), FinishReason::kLength);
  };
  for (uint64_t id = 0; id < 40; ++id) submit_and_wait(id);  // idle between them
  std::vector<std::thread> clients;
  for (uint64_t c = 1; c <= 4; ++c) {
    clients.emplace_back([&, c] {
      for (uint64_t i = 0; i < 25; ++i) submit_and_wait(c * 1000 + i);
    });
  }
  for (std::thread& client : clients) client.join();
}

// The last request ends without a step: who asks for the status then must not see it run for ever.
TEST(Idle, ACancelledLastRequestLeavesTheStatus) {
  const auto engine = LoadOrDie(Model().folder(), TestOptions(2, 2, 2));
  engine->Start();
  Mailbox mailbox;
  GenerationRequest late = Request(7, 3, 10);
  late.arrival_step = 1 << 20;
  late.data_parallel_rank = 1;
  ASSERT_TRUE(engine->Submit(late, mailbox.Sink(7)).ok());
  while (engine->status().replicas[1].queued == 0) std::this_thread::yield();
  engine->Cancel(7);
  EXPECT_EQ(mailbox.AwaitEnd(7), FinishReason::kCancelled);
  AwaitDrain(*engine);
}

// Loads are evened out; what can never be served is refused.
TEST(Submit, GoesToTheReplicaWithFewestOutstandingTokens) {
  const auto engine = LoadOrDie(Model().folder(), TestOptions(2, 2, 1));
  Mailbox mailbox;
  const auto submit = [&](uint64_t id, int32_t prompt, int32_t max_tokens) {
    return engine->Submit(Request(id, prompt, max_tokens), mailbox.Sink(id));
  };
  EXPECT_TRUE(submit(0, 100, 50).ok());
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(submit(id, 10, 30).ok());  // 120 on the other
  EXPECT_FALSE(submit(3, 10, 30).ok());                                       // the id is taken
  EXPECT_FALSE(submit(4, 0, 30).ok());
  EXPECT_FALSE(submit(4, 256, 1).ok());
  EXPECT_FALSE(submit(4, 10, 0).ok());
  GenerationRequest wrong = Request(4, 3, 3);
  wrong.prompt[1] = MadeModel::kVocab;
  EXPECT_FALSE(engine->Submit(wrong, mailbox.Sink(4)).ok());
  wrong = Request(4, 3, 3);
  wrong.data_parallel_rank = 2;
  EXPECT_FALSE(engine->Submit(wrong, mailbox.Sink(4)).ok());
  engine->Start();
  for (uint64_t id = 0; id <= 3; ++id) EXPECT_EQ(mailbox.AwaitEnd(id), FinishReason::kLength);
  AwaitDrain(*engine);
  const EngineStatus status = engine->status();
  EXPECT_EQ(status.replicas[0].prompt_tokens, 100);
  EXPECT_EQ(status.replicas[1].prompt_tokens, 30);
}

// Blocks one rank's thread inside a step until it is let go.
class StuckRank {
 public:
  StuckRank(int rank, int64_t step) : rank_(rank), step_(step) {}
  ~StuckRank() { Release(); }

  EngineHooks Hooks() {
    EngineHooks hooks;
    hooks.on_step = [this](const StepObservation& observation) {
      if (observation.rank == rank_ && observation.step == step_) released_.wait();
    };
    return hooks;
  }
  void Release() {
    if (!released_.try_wait()) released_.count_down();
  }

 private:
  const int rank_;
  const int64_t step_;
  std::latch released_{1};
};

TEST(Failure, AStuckRankIsNamedAndEndsAllRequests) {
  StuckRank stuck(3, 4);  // a follower: both leaders can tell their clients
  EngineOptions options = TestOptions(4, 2, 3);
  options.max_num_seqs = 2;
  // Far above a step's duration even on a loaded machine.
  options.collective_deadline_seconds = 2;
  options.hooks = stuck.Hooks();
  auto engine = LoadOrDie(Model().folder(), options);
  Mailbox mailbox;
  for (uint64_t id = 0; id < 8; ++id) {
    GenerationRequest request = Request(id, 3, 250);
    request.data_parallel_rank = static_cast<int>(id % 2);
    // Its last event finds the engine failed already: nobody is let in who would not be answered.
    const EventSink sink = mailbox.Sink(id);
    ASSERT_TRUE(
        engine
            ->Submit(request,
                     [&, sink, id](TokenEvent event) {
                       if (event.finish_reason != FinishReason::kNone) {
                         EXPECT_FALSE(
                             engine->Submit(Request(100 + id, 3, 3), mailbox.Sink(100 + id)).ok());
                       }
                       sink(event);
                     })
            .ok());
  }
  engine->Start();
  for (uint64_t id = 0; id < 8; ++id) {
    EXPECT_EQ(mailbox.AwaitEnd(id), FinishReason::kError);
    EXPECT_NE(mailbox.Error(id).find("rank 3"), std::string::npos) << mailbox.Error(id);
  }
  const EngineStatus status = engine->status();
  EXPECT_TRUE(status.failed);
  EXPECT_NE(status.failure.find("rank 3"), std::string::npos) << status.failure;
  const Status refused = engine->Submit(Request(50, 3, 3), mailbox.Sink(50));
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("rank 3"), std::string::npos) << refused.message();
  stuck.Release();
  engine.reset();
}

}  // namespace
}  // namespace tandem
