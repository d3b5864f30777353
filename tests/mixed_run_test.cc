// A small run with everything in it, for the sanitizers: replicas of two ranks of two threads that
// prefill, decode, finish and idle beside each other, both communicators, cancels from outside, and
// a status reader.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine_run.h"

namespace tandem {
namespace {

std::vector<GenerationRequest> Requests() {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request =
        GreedyRequest(RandomPrompt(i == 2 ? 37 : 4 + i, 301, i), i == 4 ? 1 : 4 + i);
    if (i % 2) request.sampling = {0.8f, 0, 0.9f, 0.01f, 70u + i};
    request.logprobs = 2;
    request.prompt_logprobs = i == 3 ? 1 : -1;
    request.arrival_step = i;
    requests.push_back(request);
  }
  return requests;
}

TEST(MixedRun, BitsOfOneRank) {
  EngineOptions one = TestOptions(1, 1, 3);
  one.num_threads = 2;
  const EngineRun reference = RunEngine(OddModel(), one, Requests());
  for (const bool copying : {false, true}) {
    EngineOptions options = TestOptions(4, 2, 3);
    options.num_threads = 8;
    options.chunked_prefill_size = 16;
    options.max_num_seqs = 2;
    options.copying_communicator = copying;
    const EngineRun run = RunEngine(OddModel(), options, Requests(), true);
    for (size_t i = 0; i < run.answers.size(); ++i) {
      EXPECT_EQ(Bits(run.answers[i]), Bits(reference.answers[i])) << i << " copying " << copying;
    }
  }
}

// A pool for one and a quarter of two running requests, on an FP8 cache: preemption on both
// replicas, beside time-outs and masked stop tokens.
TEST(MixedRun, PreemptedRequestsHaveTheBitsOfOneRank) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request = GreedyRequest(RandomPrompt(9 + i, 301, 20 + i), 24);
    request.logprobs = 1;
    request.stop_token_ids = {5, 6, 7, 8};
    request.min_tokens = 12;
    request.timeout_seconds = 1000;
    request.arrival_step = i;
    requests.push_back(request);
  }
  EngineOptions one = TestOptions(1, 1, 2);
  one.kv_format = LatentFormat::kFp8;
  const EngineRun reference = RunEngine(OddModel(), one, requests);
  for (const bool copying : {false, true}) {
    EngineOptions options = TestOptions(4, 2, 2);
    options.num_threads = 8;
    options.kv_format = LatentFormat::kFp8;
    options.block_size = 4;
    options.max_num_seqs = 3;
    options.max_total_tokens = 48;
    options.chunked_prefill_size = 8;
    options.copying_communicator = copying;
    const EngineRun run = RunEngine(OddModel(), options, requests);
    int preemptions = 0;
    for (size_t i = 0; i < run.answers.size(); ++i) {
      EXPECT_EQ(Bits(run.answers[i]), Bits(reference.answers[i])) << i << " copying " << copying;
      EXPECT_EQ(run.answers[i].statistics.accepted_per_step,
                reference.answers[i].statistics.accepted_per_step);
      EXPECT_GE(run.answers[i].tokens.size(), 12u);
      preemptions += run.answers[i].statistics.preemptions;
    }
    EXPECT_GT(preemptions, 0);
  }
}

TEST(MixedRun, CancelsAndReadersFromOtherThreads) {
  EngineOptions options = TestOptions(4, 2, 2);
  options.max_num_seqs = 2;
  auto engine = LoadOrDie(OddModel(), options);
  engine->Start();
  std::atomic<int> ended = 0;
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 2; ++c) {
    clients.emplace_back([&, c] {
      for (uint64_t i = 0; i < 4; ++i) {
        GenerationRequest request = GreedyRequest({5, 6, 7}, i % 2 ? 200 : 3);
        request.id = c * 100 + i;
        const Status status = engine->Submit(request, [&](TokenEvent event) {
          ended += event.finish_reason != FinishReason::kNone;
        });
        EXPECT_TRUE(status.ok());
        if (i % 2) engine->Cancel(request.id);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  while (ended < 8) {
    EXPECT_FALSE(engine->status().failed);
    std::this_thread::yield();
  }
  engine.reset();
}

}  // namespace
}  // namespace tandem
