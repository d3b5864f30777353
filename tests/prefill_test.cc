// Long prompts beside decoding: nobody stops emitting, nobody stops speculating, and the cap holds.
#include <gtest/gtest.h>

#include "engine_run.h"
#include "made_model.h"

namespace tandem {
namespace {

constexpr int32_t kPrompt = 2000;

const MadeModel& LongModel() {
  static const MadeModel model({.context = 4096});
  return model;
}

GenerationRequest Request(int replica, int32_t prompt, int32_t max_tokens, int64_t arrival = 0) {
  GenerationRequest request =
      GreedyRequest(RandomPrompt(prompt, MadeModel::kVocab, prompt), max_tokens);
  request.data_parallel_rank = replica;
  request.arrival_step = arrival;
  return request;
}

int32_t PromptRows(const std::map<int, StepObservation>& ranks, const Layout& layout) {
  int32_t rows = 0;
  for (int r = 0; r < layout.dp_size(); ++r) rows += ranks.at(layout.leader(r)).plan.prompt_rows();
  return rows;
}

bool Decodes(const std::map<int, StepObservation>& ranks) {
  for (const auto& [rank, observation] : ranks) {
    for (const PlanSequence& s : observation.plan.sequences) {
      if (!s.is_chunk()) return true;
    }
  }
  return false;
}

// What holds of every run: the cap, counted again from what was computed; and the agreed bound is
// the truth.
void ExpectCap(const EngineRun& run, const EngineOptions& options) {
  const Layout layout = *Layout::Make(options.tp_size, options.dp_size);
  for (const auto& [step, ranks] : run.steps) {
    EXPECT_EQ(ranks.at(0).group.mixed, Decodes(ranks));
    EXPECT_EQ(ranks.at(0).group.prompt_rows, PromptRows(ranks, layout));
    if (Decodes(ranks)) {
      EXPECT_LE(PromptRows(ranks, layout), options.max_step_rows) << "step " << step;
    }
  }
}

TEST(Prefill, LongPromptElsewhereStopsNobody) {
  for (const bool same_replica : {false, true}) {
    EngineOptions options = TestOptions(2, 2, 3);
    options.chunked_prefill_size = 512;
    options.max_step_rows = 64;
    const std::vector<GenerationRequest> requests = {Request(0, 4, 200),
                                                     Request(same_replica ? 0 : 1, kPrompt, 9, 2)};
    const EngineRun run = RunEngine(LongModel().folder(), options, requests);
    ExpectCap(run, options);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(run.answers[i].tokens, LongModel().Expect(requests[i], 3).tokens);
    }
    // A token event at every step, with all drafts verified and accepted, before, while and after
    // the prompt is read.
    const Answer& decoding = run.answers[0];
    const int64_t prompt_end = run.answers[1].event_steps.front();
    EXPECT_EQ(prompt_end, 2 + 2000 / 64);
    EXPECT_GT(decoding.event_steps.back(), prompt_end);
    for (size_t i = 0; i < decoding.event_steps.size(); ++i) {
      EXPECT_EQ(decoding.event_steps[i], static_cast<int64_t>(i));
    }
    EXPECT_EQ(decoding.statistics.verify_steps,
              static_cast<int64_t>(decoding.event_steps.size()) - 1);
    EXPECT_EQ(decoding.statistics.accepted, decoding.statistics.drafted);
    for (const auto& [step, ranks] : run.steps) {
      if (step > 2 && step < prompt_end) {
        EXPECT_EQ(ranks.at(0).group.k_draft, 3);
        EXPECT_EQ(ranks.at(1).group.prompt_rows, 64);
      }
    }
  }
}

TEST(Prefill, SeveralPromptingReplicasShareTheCap) {
  EngineOptions options = TestOptions(4, 4, 2);
  options.chunked_prefill_size = 512;
  options.max_step_rows = 50;
  const std::vector<GenerationRequest> requests = {Request(2, 4, 120), Request(0, 700, 5, 2),
                                                   Request(1, 701, 5, 3), Request(3, 702, 5, 4)};
  const EngineRun run = RunEngine(LongModel().folder(), options, requests);
  ExpectCap(run, options);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.answers[i].tokens, LongModel().Expect(requests[i], 2).tokens);
  }
  EXPECT_EQ(run.steps.at(2).at(0).plan.prompt_rows(), 50);
  EXPECT_EQ(run.steps.at(3).at(0).plan.prompt_rows(), 25);
  for (const int rank : {0, 1, 3}) EXPECT_EQ(run.steps.at(4).at(rank).plan.prompt_rows(), 16);
}

TEST(Prefill, NoCapWhileNobodyDecodes) {
  EngineOptions options = TestOptions(2, 2, 3);
  options.chunked_prefill_size = 512;
  options.max_step_rows = 64;
  const std::vector<GenerationRequest> requests = {Request(0, 1100, 2), Request(1, 1100, 2)};
  const EngineRun run = RunEngine(LongModel().folder(), options, requests);
  ExpectCap(run, options);
  EXPECT_EQ(run.steps.at(0).at(0).plan.prompt_rows(), 512);
  EXPECT_EQ(run.steps.at(0).at(1).plan.prompt_rows(), 512);
  EXPECT_EQ(run.answers[0].event_steps.front(), 2);
}

// The default cap is a number of the start, shown, and held.
TEST(Prefill, DefaultCapIsShownAndHeld) {
  EngineOptions options = TestOptions(2, 2, 3);
  options.max_step_rows = 0;
  Observer observer;
  options.hooks = observer.Hooks();
  auto engine = LoadOrDie(LongModel().folder(), options);
  options.max_step_rows = engine->info().max_step_rows;
  EXPECT_GE(options.max_step_rows, 2);
  EXPECT_NE(engine->info().start_block.find("at most " + std::to_string(options.max_step_rows)),
            std::string::npos)
      << engine->info().start_block;
  Answers(*engine, {Request(0, 4, 40), Request(1, kPrompt, 3, 1), Request(0, kPrompt, 3, 1)});
  engine.reset();
  ExpectCap({{}, observer.steps()}, options);
}

}  // namespace
}  // namespace tandem
