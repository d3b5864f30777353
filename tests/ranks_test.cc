// Ranks that are busy, prefilling, finishing or idle in one step: equal collectives, equal counts,
// equal bits.
#include <gtest/gtest.h>

#include <set>

#include "engine_run.h"
#include "made_model.h"

namespace tandem {
namespace {

struct Cell {
  int tp, dp;
  bool copying;
};

std::string NameOf(const testing::TestParamInfo<Cell>& info) {
  return "tp" + std::to_string(info.param.tp) + "dp" + std::to_string(info.param.dp) +
         (info.param.copying ? "copying" : "inplace");
}

// What a replica does in a step; it may do several things at once.
enum State { kIdle, kMiddleChunk, kFinalChunk, kDecode, kFinishing, kNumStates };

// Work for one replica after the other, with pauses in which it is idle. Some requests stop inside
// a window.
std::vector<GenerationRequest> MixedRequests(int replicas, int per_replica) {
  std::mt19937 random(3);
  std::vector<GenerationRequest> requests;
  for (int replica = 0; replica < replicas; ++replica) {
    int64_t arrival = random() % 4;
    for (int i = 0; i < per_replica; ++i) {
      const int32_t size = i % 3 == 0 ? 50 : 1 + static_cast<int32_t>(random() % 40);
      GenerationRequest request =
          GreedyRequest(RandomPrompt(i % 5 == 1 ? 4 : size, MadeModel::kVocab, random()),
                        2 + static_cast<int32_t>(random() % 19));
      if (i % 2 == 1) {
        request.stop_token_ids = {static_cast<int32_t>(random() % MadeModel::kVocab),
                                  static_cast<int32_t>(random() % MadeModel::kVocab)};
        request.max_tokens = 40;
      }
      request.data_parallel_rank = replica;
      request.arrival_step = arrival;
      arrival += 2 + static_cast<int64_t>(random() % 12);
      requests.push_back(request);
    }
  }
  return requests;
}

std::set<State> StatesOf(const StepObservation& leader, const std::vector<Answer>& answers) {
  std::set<State> states;
  for (const PlanSequence& s : leader.plan.sequences) {
    if (s.is_chunk()) {
      states.insert(s.is_final_chunk() ? kFinalChunk : kMiddleChunk);
    } else {
      const bool last = answers[s.request_id].event_steps.back() == leader.step;
      states.insert(last && s.num_rows > 1 ? kFinishing : kDecode);
    }
  }
  if (states.empty()) states.insert(kIdle);
  return states;
}

// Collectives of a replica's group; all others are of the world.
bool IsGroupCollective(const CollectiveRecord& record) {
  static const std::set<std::string> names = {"plan", "attention", "o_proj", "sampled", "drafts"};
  return names.contains(record.tag.substr(0, record.tag.find('/')));
}

void ExpectEqualTraces(const std::map<int, StepObservation>& ranks, const Layout& layout) {
  const std::vector<CollectiveRecord>& first = ranks.at(0).collectives;
  ASSERT_FALSE(first.empty());
  for (const auto& [rank, observation] : ranks) {
    const int leader = layout.leader(layout.replica(rank));
    const std::vector<CollectiveRecord>& group = ranks.at(leader).collectives;
    const std::vector<CollectiveRecord>& own = observation.collectives;
    ASSERT_EQ(own.size(), first.size()) << "rank " << rank << " step " << observation.step;
    for (size_t i = 0; i < own.size(); ++i) {
      ASSERT_EQ(own[i].tag, first[i].tag) << "rank " << rank << " step " << observation.step;
      ASSERT_EQ(own[i].kind, first[i].kind) << own[i].tag;
      ASSERT_EQ(own[i].sequence, first[i].sequence) << own[i].tag;
      const CollectiveRecord& peer = IsGroupCollective(own[i]) ? group[i] : first[i];
      ASSERT_EQ(own[i].size_hash, peer.size_hash) << own[i].tag << " rank " << rank;
    }
  }
}

class RanksTest : public testing::TestWithParam<Cell> {
 protected:
  static EngineOptions Options(int k) {
    EngineOptions options = TestOptions(GetParam().tp, GetParam().dp, k);
    options.copying_communicator = GetParam().copying;
    options.chunked_prefill_size = 16;
    return options;
  }
};

TEST_P(RanksTest, TracesAreEqualForEveryMixOfStates) {
  const MadeModel model;
  const Layout layout = *Layout::Make(GetParam().tp, GetParam().dp);
  const std::vector<GenerationRequest> requests = MixedRequests(layout.dp_size(), 14);
  const EngineRun run = RunEngine(model.folder(), Options(3), requests, true);

  std::set<std::pair<State, State>> covered;
  std::map<int, std::set<std::pair<size_t, size_t>>> counts;  // by k_draft
  bool inside = false;
  for (const auto& [step, ranks] : run.steps) {
    ASSERT_EQ(ranks.size(), static_cast<size_t>(layout.tp_size()));
    ExpectEqualTraces(ranks, layout);
    for (const auto& [rank, observation] : ranks) {
      counts[observation.group.k_draft].emplace(observation.num_operations,
                                                observation.num_collectives);
    }
    for (int a = 0; a < layout.dp_size(); ++a) {
      for (int b = 0; b < layout.dp_size(); ++b) {
        if (a == b) continue;
        for (const State s : StatesOf(ranks.at(layout.leader(a)), run.answers)) {
          for (const State t : StatesOf(ranks.at(layout.leader(b)), run.answers)) {
            covered.emplace(s, t);
          }
        }
      }
    }
  }
  EXPECT_EQ(covered.size(), size_t{kNumStates * kNumStates}) << "the requests do not mix enough";
  EXPECT_GE(counts.size(), 3u) << "too few different numbers of draft passes";
  for (const auto& [k_draft, set] : counts) EXPECT_EQ(set.size(), 1u) << "k_draft " << k_draft;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const Expectation expected = model.Expect(requests[i], 3);
    EXPECT_EQ(run.answers[i].tokens, expected.tokens);
    EXPECT_EQ(run.answers[i].statistics.accepted_per_step, expected.accepted_per_step);
    inside |= run.answers[i].finish_reason == FinishReason::kStop &&
              !expected.accepted_per_step.empty() && expected.accepted_per_step.back() < 3;
  }
  EXPECT_TRUE(inside) << "no request stopped inside a window";
}

// The last request of a replica ends inside a window while the other goes on, then the replica is
// idle.
TEST_P(RanksTest, LastRequestOfAReplicaEndsInsideAWindow) {
  const MadeModel model;
  GenerationRequest ending = GreedyRequest({7}, 100);
  for (int i = 0; i < 6; ++i) {  // sampled: 1 by the chunk, 4 and 1 of 4 by two windows
    const int32_t last = i == 0 ? 7 : ending.stop_token_ids[0];
    ending.stop_token_ids = {MadeModel::Successor(last)};
  }
  GenerationRequest going = GreedyRequest({9, 8}, 42);
  ending.data_parallel_rank = GetParam().dp - 1;
  going.data_parallel_rank = 0;
  const EngineRun run = RunEngine(model.folder(), Options(3), {ending, going});
  EXPECT_EQ(run.answers[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(run.answers[0].tokens, model.Expect(ending, 3).tokens);
  EXPECT_EQ(run.answers[0].tokens.size(), 6u);
  EXPECT_EQ(run.answers[0].event_steps.back(), 2);
  EXPECT_EQ(run.answers[1].tokens, model.Expect(going, 3).tokens);
  const int last_rank = GetParam().tp - 1;
  // Its rows stay to the end of the step, and are gone in the next.
  const GroupPlan& end = run.steps.at(2).at(last_rank).group;
  EXPECT_EQ(end.row_begin[GetParam().tp], 8);
  const StepObservation& after = run.steps.at(3).at(last_rank);
  EXPECT_EQ(after.group.row_begin[GetParam().tp], 4);
  EXPECT_TRUE(after.plan.sequences.empty());
}

// Context, max_tokens and EOS, each on its own replica, in one step.
TEST_P(RanksTest, AllWaysToEndInOneStep) {
  MadeModelOptions model_options;
  model_options.context = 40;
  const MadeModel model(model_options);
  std::vector<GenerationRequest> requests = {
      GreedyRequest(RandomPrompt(15, MadeModel::kVocab, 1), 1000),  // context: 25 = 1 + 6 x 4
      GreedyRequest(RandomPrompt(5, MadeModel::kVocab, 2), 25),     // max_tokens
      GreedyRequest(RandomPrompt(3, MadeModel::kVocab, 3),
                    30),  // EOS as token 23, inside the window
      GreedyRequest(RandomPrompt(3, MadeModel::kVocab, 4), 37)};  // goes on
  requests[2].stop_token_ids = {model.Expect(requests[2], 0).tokens[22]};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].data_parallel_rank = static_cast<int>(i) % GetParam().dp;
  }
  EngineOptions options = Options(3);
  options.chunked_prefill_size = 64;  // all prompts in the first step, also where replicas have two
  const EngineRun run = RunEngine(model.folder(), options, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.answers[i].tokens, model.Expect(requests[i], 3).tokens) << i;
  }
  EXPECT_EQ(run.answers[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(run.answers[0].tokens.size(), 25u);
  EXPECT_EQ(run.answers[1].finish_reason, FinishReason::kLength);
  EXPECT_EQ(run.answers[2].finish_reason, FinishReason::kStop);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.answers[i].event_steps.back(), 6) << i;
  EXPECT_GT(run.answers[3].event_steps.back(), 6);
  for (const auto& [rank, observation] : run.steps.rbegin()->second) {
    EXPECT_EQ(observation.blocks_in_use, 0) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, RanksTest,
                         testing::Values(Cell{2, 2, false}, Cell{4, 2, false}, Cell{4, 2, true},
                                         Cell{4, 4, false}, Cell{4, 4, true}),
                         NameOf);

// Real attention: a replica's answers are the same to the bit alone, and beside replicas that are
// idle.
TEST(IdleReplicas, ChangeNoBit) {
  std::vector<GenerationRequest> requests;
  for (const int32_t size : {17, 4, 33}) {
    GenerationRequest request = GreedyRequest(RandomPrompt(size, 301, size), 12);
    request.logprobs = 3;
    request.prompt_logprobs = 1;
    requests.push_back(request);
  }
  requests[1].sampling = {0.8f, 0, 0.9f, 0.0f, 77};
  const EngineRun alone = RunEngine(OddModel(), TestOptions(1, 1, 3), requests);
  for (const auto& [tp, dp] : {std::pair(2, 2), {4, 4}, {8, 4}}) {
    for (const int replica : {0, dp - 1}) {
      for (GenerationRequest& request : requests) request.data_parallel_rank = replica;
      const EngineRun run = RunEngine(OddModel(), TestOptions(tp, dp, 3), requests);
      EXPECT_EQ(run.steps.size(), alone.steps.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(Bits(run.answers[i]), Bits(alone.answers[i])) << tp << " " << dp << " " << i;
        EXPECT_EQ(run.answers[i].statistics.accepted_per_step,
                  alone.answers[i].statistics.accepted_per_step);
      }
    }
  }
}

// Idle ranks have no veto: the trained model speculates on one replica of four as it does alone.
TEST(IdleReplicas, OneRequestOnDp4Speculates) {
  const MadeModel made;
  GenerationRequest request = GreedyRequest({5}, 33);
  for (int replica = 0; replica < 4; ++replica) {
    request.data_parallel_rank = replica;
    const EngineRun run = RunEngine(made.folder(), TestOptions(4, 4, 3), {request});
    EXPECT_EQ(run.answers[0].statistics.accept_length(), 4.0);
    EXPECT_EQ(run.steps.size(), 9u);
  }
  request = GreedyRequest({0, 400, 401, 402, 403, 404}, 24);
  request.logprobs = 2;
  const EngineRun alone = RunEngine(TinyModel(), TestOptions(1, 1, 3), {request});
  request.data_parallel_rank = 2;
  const EngineRun run = RunEngine(TinyModel(), TestOptions(4, 4, 3), {request});
  EXPECT_GT(run.answers[0].statistics.accept_length(), 1.0);
  EXPECT_EQ(Bits(run.answers[0]), Bits(alone.answers[0]));
  EXPECT_EQ(run.answers[0].statistics.accepted_per_step,
            alone.answers[0].statistics.accepted_per_step);
}

// dp < tp: 1, 2 and 3 sequences per replica at a time, odd lengths, and prompts as long as a
// window.
TEST(UnevenReplicas, AnswersAreThoseOfOneRank) {
  std::vector<GenerationRequest> requests;
  const auto add = [&](int replica, int64_t arrival, int32_t size, int32_t max_tokens) {
    GenerationRequest request =
        GreedyRequest(RandomPrompt(size, 301, size * 7 + replica), max_tokens);
    request.logprobs = 2;
    request.data_parallel_rank = replica;
    request.arrival_step = arrival;
    requests.push_back(request);
  };
  add(0, 0, 7, 40);  // replica 0: one sequence, then two, then three
  add(0, 8, 4, 20);  // k + 1 tokens
  add(0, 14, 13, 9);
  add(1, 0, 4, 12);  // replica 1: three, then fewer
  add(1, 0, 21, 16);
  add(1, 1, 1, 30);
  EngineOptions options = TestOptions(4, 2, 3);
  options.chunked_prefill_size = 16;
  const EngineRun run = RunEngine(OddModel(), options, requests);
  std::set<std::pair<size_t, size_t>> sequences;
  for (const auto& [step, ranks] : run.steps) {
    sequences.emplace(ranks.at(0).plan.sequences.size(), ranks.at(2).plan.sequences.size());
  }
  EXPECT_TRUE(sequences.contains({1, 3}) && sequences.contains({2, 2}) &&
              sequences.contains({3, 1}))
      << "the requests do not mix enough";
  for (GenerationRequest& request : requests) request.data_parallel_rank.reset();
  const EngineRun one = RunEngine(OddModel(), TestOptions(1, 1, 3), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(Bits(run.answers[i]), Bits(one.answers[i])) << i;
    EXPECT_EQ(run.answers[i].statistics.accepted_per_step,
              one.answers[i].statistics.accepted_per_step);
  }
}

}  // namespace
}  // namespace tandem
