// Acceptance, which no output shows when it is wrong: a made model whose every count is known
// beforehand.
#include <gtest/gtest.h>

#include "engine_run.h"
#include "made_model.h"

namespace tandem {
namespace {

// One request per length, on all replicas; all of a length's answers must be what the model says.
void ExpectExact(const MadeModel& model, const EngineOptions& options,
                 const std::vector<GenerationRequest>& requests, int64_t* drafted = nullptr,
                 int64_t* accepted = nullptr) {
  const EngineRun run = RunEngine(model.folder(), options, requests);
  const int k = options.num_draft_tokens;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i) + " k " + std::to_string(k));
    const Expectation expected = model.Expect(requests[i], k);
    const RequestStatistics& s = run.answers[i].statistics;
    EXPECT_EQ(run.answers[i].tokens, expected.tokens);
    EXPECT_EQ(s.accepted_per_step, expected.accepted_per_step);
    EXPECT_EQ(s.drafted, expected.drafted);
    EXPECT_EQ(s.verify_steps, static_cast<int64_t>(expected.accepted_per_step.size()));
    int64_t sum = 0;
    std::vector<int64_t> per_position(k);
    for (const int32_t a : expected.accepted_per_step) {
      sum += a;
      for (int32_t j = 0; j < a; ++j) ++per_position[j];
    }
    EXPECT_EQ(s.accepted, sum);
    EXPECT_EQ(s.accepted_per_position, per_position);
    if (drafted != nullptr) *drafted += s.drafted;
    if (accepted != nullptr) *accepted += s.accepted;
  }
}

std::vector<GenerationRequest> Requests(float temperature, std::vector<int32_t> max_tokens) {
  std::vector<GenerationRequest> requests;
  for (const int32_t n : max_tokens) {
    GenerationRequest request = GreedyRequest(RandomPrompt(1 + n % 11, MadeModel::kVocab, n), n);
    request.sampling.temperature = temperature;
    request.sampling.seed = 1000 + n;
    requests.push_back(request);
  }
  return requests;
}

TEST(Acceptance, IsAllForEveryK) {
  const MadeModel model({.sharpness = 4.0f});  // not so sharp that sampling follows one path
  for (int k = 1; k <= kMaxDraftTokens; ++k) {
    for (const float temperature : {0.0f, 0.8f}) {
      const int tp = k % 2 ? 1 : 4;
      const EngineOptions options = TestOptions(tp, tp / 2 + (tp == 1), k);
      // 1 + 5 windows of k + 1, and lengths that leave every rest.
      std::vector<GenerationRequest> requests =
          Requests(temperature, {1 + 5 * (k + 1), 1 + 5 * (k + 1), 2, 3, k + 1, k + 3, 30, 47});
      const EngineRun run = RunEngine(model.folder(), options, requests);
      for (int i = 0; i < 2; ++i) {
        const RequestStatistics& s = run.answers[i].statistics;
        EXPECT_EQ(s.accept_length(), k + 1.0);
        EXPECT_EQ(s.verify_steps, 5);
        EXPECT_EQ(s.steps, 6);
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(run.answers[i].statistics.accepted, run.answers[i].statistics.drafted);
        EXPECT_EQ(run.answers[i].tokens, model.Expect(requests[i], k).tokens);
      }
    }
  }
}

TEST(Acceptance, SampledTextIsNotTheGreedyOne) {
  const MadeModel model({.sharpness = 4.0f});
  EXPECT_NE(model.Expect(Requests(0.8f, {47})[0], 0).tokens,
            model.Expect(Requests(0.0f, {47})[0], 0).tokens);
}

// Damaging the module's own head or embedding gives the rate that follows from the damage, and
// never another text.
TEST(Acceptance, AnyOtherRateFollowsFromTheDamage) {
  std::vector<double> rates;
  for (const int damaged : {4, 16, 64}) {
    MadeModelOptions muted{.sharpness = 4.0f}, misread{.sharpness = 4.0f, .fp32 = true};
    for (int32_t t = 0; t < damaged; ++t) {
      muted.muted.push_back((t * 7) % MadeModel::kVocab);
      misread.misread.push_back((t * 7) % MadeModel::kVocab);
    }
    for (const MadeModelOptions& options : {muted, misread}) {
      const MadeModel model(options);
      int64_t drafted = 0, accepted = 0;
      for (const float temperature : {0.0f, 0.8f}) {
        ExpectExact(model, TestOptions(2, 2, 3), Requests(temperature, {60, 61, 62, 63}), &drafted,
                    &accepted);
      }
      rates.push_back(static_cast<double>(accepted) / static_cast<double>(drafted));
    }
  }
  // Few, some and all of the vocabulary.
  EXPECT_GT(rates[0], rates[2]);
  EXPECT_GT(rates[2], rates[4]);
  EXPECT_GT(rates[1], rates[3]);
  EXPECT_GT(rates[3], rates[5]);
  EXPECT_GT(rates[0], 0.7);
  EXPECT_LT(rates[5], 0.3);
}

// The engine's totals are the sums of its requests.
TEST(Acceptance, StatusCountsWhatRequestsCount) {
  const MadeModel model({.muted = {3, 9, 27}});
  const auto engine = LoadOrDie(model.folder(), TestOptions(2, 2, 3));
  int64_t drafted = 0, accepted = 0, steps = 0, emitted = 0;
  for (const Answer& a : Answers(*engine, Requests(0.0f, {30, 40, 50, 20}))) {
    drafted += a.statistics.drafted;
    accepted += a.statistics.accepted;
    steps += a.statistics.verify_steps;
    emitted += a.statistics.verify_emitted;
  }
  EngineStatus status = engine->status();
  while (status.replicas[0].running + status.replicas[1].running > 0) status = engine->status();
  for (const ReplicaStatus& replica : status.replicas) {
    drafted -= replica.drafted;
    accepted -= replica.accepted;
    steps -= replica.verify_steps;
    emitted -= replica.verify_emitted;
  }
  EXPECT_EQ(std::vector<int64_t>({drafted, accepted, steps, emitted}), std::vector<int64_t>(4));
}

// Many equal prompts at once and one after the other, with and without speculation: one answer.
TEST(EqualRequests, OneAnswer) {
  for (const float temperature : {0.0f, 0.8f}) {
    std::vector<int32_t> first;
    for (const int k : {0, 3}) {
      std::vector<GenerationRequest> requests;
      for (int i = 0; i < 64; ++i) {
        GenerationRequest request = GreedyRequest(RandomPrompt(20, 301, 5), 12);
        request.sampling = {temperature, 0, 0.95f, 0.0f, 4242};
        request.arrival_step = i / 8;
        requests.push_back(request);
      }
      EngineOptions options = TestOptions(2, 2, k);
      options.chunked_prefill_size = 50;  // cuts prompts at many places
      const EngineRun run = RunEngine(OddModel(), options, requests);
      if (first.empty()) first = run.answers[0].tokens;
      EXPECT_EQ(first.size(), 12u);
      for (size_t i = 0; i < 64; ++i) EXPECT_EQ(run.answers[i].tokens, first) << i << " k " << k;
    }
  }
}

// Layers that take turns: without the MTP layer the last one is dense.
TEST(AcceptanceTest, ExpertsNeedNotBeInTheLastLayer) {
  const MadeModel model({.experts_first = true});
  for (const int k : {0, 2}) {
    for (const int tp : {1, 4}) ExpectExact(model, TestOptions(tp, 1, k), Requests(0.0f, {9, 20}));
  }
}

}  // namespace
}  // namespace tandem
