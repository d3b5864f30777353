// What cannot fit is refused with the reason: pools at start, requests when they come.
#include <gtest/gtest.h>

#include "engine_run.h"
#include "made_model.h"

namespace tandem {
namespace {

Status LoadStatus(const MadeModel& model, const EngineOptions& options) {
  return Engine::Load(model.folder(), options).status();
}

TEST(LimitsTest, APoolSmallerThanABlockStopsTheStart) {
  const MadeModel model;
  EngineOptions options = TestOptions(2, 2, 1);
  options.max_total_tokens = options.block_size - 1;
  const Status status = LoadStatus(model, options);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("does not hold one block"), std::string::npos);
}

TEST(LimitsTest, WorkspaceBeyondTheMachineStopsTheStartWithTheSum) {
  const MadeModel model({.context = 1 << 17});
  EngineOptions options = TestOptions(16, 16, 8);
  options.chunked_prefill_size = 1 << 20;
  options.max_num_seqs = 4096;
  const Status status = LoadStatus(model, options);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("workspace"), std::string::npos) << status.message();
}

// Every set that the machine has gives the same answer and says its name; others are refused.
TEST(LimitsTest, InstructionSetsThatTheMachineLacksStopTheStart) {
  const MadeModel model;
  EngineOptions options = TestOptions(1, 1, 2);
  std::vector<int32_t> expected;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    options.isa = isa;
    if (!IsSupported(isa)) {
      const Status status = LoadStatus(model, options);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(IsaName(isa)), std::string::npos) << status.message();
      continue;
    }
    const auto engine = LoadOrDie(model.folder(), options);
    EXPECT_NE(engine->info().start_block.find(std::string("instructions ") + IsaName(isa)),
              std::string::npos);
    const std::vector<int32_t> tokens = Answers(*engine, {GreedyRequest({2, 3}, 20)})[0].tokens;
    if (expected.empty()) expected = tokens;
    EXPECT_EQ(tokens, expected);
  }
}

TEST(LimitsTest, RequestsThatCanNeverFitAreRefusedAndOthersServed) {
  const MadeModel model;
  EngineOptions options = TestOptions(1, 1, 2);
  options.max_total_tokens = 48;
  const auto engine = LoadOrDie(model.folder(), options);
  EXPECT_EQ(engine->info().kv_tokens_per_replica, 48);
  const auto submit = [&](GenerationRequest request) {
    return engine->Submit(std::move(request), [](TokenEvent) {}).message();
  };
  EXPECT_NE(submit(GreedyRequest({2, 3}, 60)).find("pool holds 48"), std::string::npos);
  EXPECT_NE(submit(GreedyRequest({}, 5)).find("empty"), std::string::npos);
  EXPECT_NE(submit(GreedyRequest({2, MadeModel::kVocab}, 5)).find("vocabulary"), std::string::npos);
  EXPECT_NE(submit(GreedyRequest({2}, 0)).find("max_tokens"), std::string::npos);
  GenerationRequest late = GreedyRequest({2}, 5);
  late.arrival_step = int64_t{1} << 40;
  EXPECT_NE(submit(late).find("arrival_step"), std::string::npos);
  EXPECT_EQ(Answers(*engine, {GreedyRequest({2, 3}, 46)})[0].tokens.size(), 46u);
}

}  // namespace
}  // namespace tandem
