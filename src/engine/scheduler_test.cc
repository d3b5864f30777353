// One file, though long: every test drives the same made-up Replica below, and preemption,
// time-outs and windows are only meaningful together.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>

namespace tandem {
namespace {

// The text that every request would get: the token at a position, whatever the request.
int32_t TextAt(int32_t position) {
  return 1000 + position;
}

// A scheduler and a model made of a text: answers plans as a step would, and keeps the events.
class Replica {
 public:
  Replica(const SchedulerOptions& options, int32_t num_blocks)
      : options_(options), scheduler_(options, num_blocks) {}

  std::function<bool(int32_t position)> draft_is_right = [](int32_t) { return true; };
  int32_t broken_position = -1;  // where nothing can be sampled
  Scheduler::Clock::time_point now{};

  void Add(uint64_t id, int32_t prompt, int32_t max_tokens, GenerationRequest request = {}) {
    request.id = id;
    for (int32_t i = 0; i < prompt; ++i) request.prompt.push_back(TextAt(i));
    request.max_tokens = max_tokens;
    scheduler_.Add(
        std::move(request),
        [this](TokenEvent event) {
          if (event.finish_reason != FinishReason::kNone) {
            free_at_end[event.request_id] = scheduler_.pool().num_free();
          }
          events[event.request_id].push_back(std::move(event));
        },
        now);
  }

  StepPlan Propose() {
    StepPlan plan = scheduler_.Propose(step_, now);
    CheckBlocks(plan);
    return plan;
  }

  // Computes `plan`, cut to `max_prompt_rows`, and commits it.
  void Run(StepPlan plan, int32_t max_prompt_rows = kNoPromptLimit) {
    plan.Truncate(max_prompt_rows);
    std::vector<SampleResult> head;
    std::vector<int32_t> drafts;
    for (const PlanSequence& s : plan.sequences) {
      for (int32_t i = s.num_rows - s.head_rows(); i < s.num_rows; ++i) {
        const int32_t position = s.start + i + 1;
        head.emplace_back().token = position == broken_position ? -1 : TextAt(position);
        head.back().logprob = -static_cast<float>(position);
      }
      if (s.useful_drafts(options_.num_draft_tokens) > 0) AddDrafts(s, plan, head, drafts);
    }
    scheduler_.Commit(plan, {head, drafts}, step_++);
  }

  // Steps until nothing is outstanding; returns how many.
  int64_t Drain() {
    const int64_t first = step_;
    for (StepPlan plan = Propose(); plan.has_work; plan = Propose()) Run(std::move(plan));
    return step_ - first;
  }

  std::vector<int32_t> Tokens(uint64_t id) {
    std::vector<int32_t> tokens;
    for (const TokenEvent& e : events[id]) {
      tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
    }
    return tokens;
  }
  const TokenEvent& Last(uint64_t id) { return events.at(id).back(); }
  int32_t num_free() const { return scheduler_.pool().num_free(); }
  int32_t num_promised() const { return scheduler_.pool().num_promised(); }

  std::map<uint64_t, std::vector<TokenEvent>> events;
  std::map<uint64_t, int32_t> free_at_end;  // blocks free when the last event came
  Scheduler& scheduler() { return scheduler_; }
  int64_t step() const { return step_; }

 private:
  void AddDrafts(const PlanSequence& s, const StepPlan& plan, const std::vector<SampleResult>& head,
                 std::vector<int32_t>& drafts) {
    int32_t newest = s.start + s.num_rows;  // position of the newest true token
    if (!s.is_chunk()) {
      newest = s.start + 1 +
               AcceptedDrafts({plan.tokens.data() + s.token_begin, size_t(s.num_rows)},
                              head.data() + head.size() - s.num_rows);
    }
    for (int32_t pass = 1; pass <= kMaxDraftTokens; ++pass) {
      const bool active = newest + pass - 1 < s.limit - 1;
      const bool wanted = pass <= options_.num_draft_tokens;
      const int32_t right = TextAt(newest + pass);
      const int32_t token = draft_is_right(newest + pass) ? right : right + 5000;
      drafts.push_back(wanted && active ? token : -1);
    }
  }

  // Every slot that rows, fills and draft passes may touch lies in a block, and no two sequences
  // share one.
  void CheckBlocks(const StepPlan& plan) {
    const int32_t k = options_.num_draft_tokens;
    std::set<int32_t> blocks;
    for (const PlanSequence& s : plan.sequences) {
      const int32_t last_row = s.start + s.num_rows - 1;
      const int32_t last_mtp = k == 0 ? 0 : std::min(s.limit - 2, last_row + k);
      EXPECT_GT(s.num_blocks * options_.block_size, std::max(last_row, last_mtp));
      EXPECT_LE((s.num_blocks - 1) * options_.block_size, s.limit - 1);
      EXPECT_LE(s.start + s.num_rows, s.limit);
      for (int32_t b = 0; b < s.num_blocks; ++b) {
        EXPECT_TRUE(blocks.insert(plan.blocks.at(s.block_begin + b)).second);
      }
    }
  }

  const SchedulerOptions options_;
  Scheduler scheduler_;
  int64_t step_ = 0;
};

SchedulerOptions Options(int32_t k, int32_t max_num_seqs = 16, int32_t chunk = 512) {
  SchedulerOptions options;
  options.context_length = 400;
  options.block_size = 4;
  options.max_num_seqs = max_num_seqs;
  options.chunked_prefill_size = chunk;
  options.num_draft_tokens = k;
  return options;
}

std::vector<int32_t> Text(int32_t begin, int32_t count) {
  std::vector<int32_t> text;
  for (int32_t i = 0; i < count; ++i) text.push_back(TextAt(begin + i));
  return text;
}

std::vector<uint64_t> Ids(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const PlanSequence& s : plan.sequences) ids.push_back(s.request_id);
  return ids;
}

TEST(AcceptedDrafts, LongestEqualPrefix) {
  SampleResult sampled[4] = {};
  for (int i = 0; i < 4; ++i) sampled[i].token = 11 + i;
  EXPECT_EQ(AcceptedDrafts(std::vector<int32_t>{10}, sampled), 0);
  EXPECT_EQ(AcceptedDrafts(std::vector<int32_t>{10, 11, 12, 13}, sampled), 3);
  EXPECT_EQ(AcceptedDrafts(std::vector<int32_t>{10, 11, 99, 13}, sampled), 1);
  EXPECT_EQ(AcceptedDrafts(std::vector<int32_t>{10, 99, 12, 13}, sampled), 0);
}

TEST(Scheduler, FirstComeFirstServedWithinMaxNumSeqs) {
  Replica replica(Options(0, 2), 400);
  for (uint64_t id = 0; id < 4; ++id) replica.Add(id, 3, 2);
  StepPlan plan = replica.Propose();
  EXPECT_EQ(Ids(plan), (std::vector<uint64_t>{0, 1}));
  replica.Run(plan);
  EXPECT_EQ(replica.scheduler().status().running, 2);
  EXPECT_EQ(replica.scheduler().status().queued, 2);
  replica.Run(replica.Propose());  // 0 and 1 finish
  EXPECT_EQ(Ids(replica.Propose()), (std::vector<uint64_t>{2, 3}));
  replica.Drain();
  EXPECT_EQ(replica.Tokens(3), Text(3, 2));
}

TEST(Scheduler, NobodyOvertakesARequestThatWaitsForBlocks) {
  Replica replica(Options(0), 10);
  replica.Add(0, 20, 4);  // 6 blocks
  replica.Add(1, 20, 4);  // 6 more do not fit
  replica.Add(2, 3, 1);   // 1 more would
  EXPECT_EQ(Ids(replica.Propose()), std::vector<uint64_t>{0});
  replica.Drain();
  EXPECT_LT(replica.Last(0).step, replica.Last(1).step);
  EXPECT_EQ(replica.num_free(), 10);
}

TEST(Scheduler, ChunksShareOneBudgetAndKeepOrder) {
  Replica replica(Options(3, 16, 16), 400);
  replica.Add(0, 10, 20);
  replica.Add(1, 40, 20);
  StepPlan plan = replica.Propose();
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_TRUE(plan.sequences[0].is_final_chunk());
  EXPECT_EQ(plan.sequences[1].num_rows, 6);
  EXPECT_FALSE(plan.sequences[1].emits());
  // A chunk brings the next prompt token too: the fill of its last row needs it.
  EXPECT_EQ(plan.tokens.size(), 10u + 6u + 1u);
  EXPECT_EQ(plan.tokens.back(), TextAt(6));
  replica.Run(plan);
  EXPECT_EQ(replica.events.count(1), 0u);  // a middle chunk says nothing
  plan = replica.Propose();                // 0 decodes beside the next chunk of 1
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_FALSE(plan.sequences[0].is_chunk());
  EXPECT_EQ(plan.sequences[0].num_rows, 4);
  EXPECT_EQ(plan.sequences[1].start, 6);
  EXPECT_EQ(plan.sequences[1].num_rows, 16);
  // Cut by the group: rows that were not computed come again.
  replica.Run(plan, 5);
  EXPECT_EQ(replica.Propose().sequences[1].start, 11);
  replica.Drain();
  EXPECT_EQ(replica.Tokens(0), Text(10, 20));
  EXPECT_EQ(replica.Tokens(1), Text(40, 20));
}

TEST(Scheduler, AFinalChunkThatIsCutEmitsNothing) {
  Replica replica(Options(3), 400);
  replica.Add(0, 10, 20);
  StepPlan plan = replica.Propose();
  EXPECT_TRUE(plan.sequences[0].is_final_chunk());
  replica.Run(plan, 9);
  EXPECT_TRUE(replica.events.empty());
  EXPECT_EQ(replica.Propose().sequences[0].start, 9);
  replica.Drain();
  EXPECT_EQ(replica.Tokens(0), Text(10, 20));
}

TEST(Scheduler, ArrivalStepHoldsARequestBack) {
  Replica replica(Options(0), 400);
  GenerationRequest late;
  late.arrival_step = 3;
  replica.Add(0, 3, 2, late);
  for (int64_t step = 0; step < 3; ++step) {
    const StepPlan plan = replica.Propose();
    EXPECT_TRUE(plan.has_work);  // steps are counted while it is outstanding
    EXPECT_TRUE(plan.sequences.empty());
    replica.Run(plan);
  }
  EXPECT_EQ(replica.scheduler().status().queued, 1);
  replica.Drain();
  EXPECT_EQ(replica.events[0].front().step, 3);
}

// All lengths near the window: exactly max_tokens tokens, however many drafts are accepted.
TEST(Scheduler, LimitIsExactForEveryWindow) {
  for (int32_t k = 0; k <= kMaxDraftTokens; ++k) {
    Replica replica(Options(k), 4000);
    for (int32_t max_tokens = 1; max_tokens <= 24; ++max_tokens) {
      replica.Add(max_tokens, 5, max_tokens);
    }
    replica.Add(99, 390, 1000);  // the context of 400 ends it
    while (true) {
      const StepPlan plan = replica.Propose();
      if (!plan.has_work) break;
      for (const PlanSequence& s : plan.sequences) {
        // A window of n drafts may emit n + 1 tokens; start + 1 are known.
        if (!s.is_chunk()) {
          EXPECT_LE(s.start + 1 + s.num_rows, s.limit);
        }
      }
      replica.Run(plan);
    }
    for (int32_t max_tokens = 1; max_tokens <= 24; ++max_tokens) {
      EXPECT_EQ(replica.Tokens(max_tokens), Text(5, max_tokens));
      EXPECT_EQ(replica.Last(max_tokens).finish_reason, FinishReason::kLength);
      const RequestStatistics& s = replica.Last(max_tokens).statistics;
      // All drafts are right here: full windows, then what the limit leaves.
      const int32_t left = (max_tokens - 1) % (k + 1);
      EXPECT_EQ(s.steps, 1 + (max_tokens - 1) / (k + 1) + (left > 0));
      EXPECT_EQ(s.accepted, s.drafted);
      EXPECT_EQ(s.verify_emitted, s.accepted + s.verify_steps);
    }
    EXPECT_EQ(replica.Tokens(99), Text(390, 10));
    EXPECT_EQ(replica.num_free(), 4000);
  }
}

TEST(Scheduler, RejectedDraftsAreNeverEmitted) {
  Replica replica(Options(3), 400);
  replica.draft_is_right = [](int32_t position) { return position % 4 != 0; };
  replica.Add(0, 5, 30);
  replica.Drain();
  EXPECT_EQ(replica.Tokens(0), Text(5, 30));
  const RequestStatistics& s = replica.Last(0).statistics;
  EXPECT_LT(s.accepted, s.drafted);
  int64_t sum = 0;
  for (const int64_t n : s.accepted_per_position) sum += n;
  EXPECT_EQ(sum, s.accepted);
  // Position 5 is sampled by the chunk; 6 and 7 are right, 8 is not, the window gives 6, 7, 8.
  EXPECT_EQ(s.accepted_per_step[0], 2);
  EXPECT_EQ(replica.events[0][1].tokens, Text(6, 3));
}

// Counts come after the cut: what stands behind a stop token was never accepted.
TEST(Scheduler, CountsAfterAStopTokenInsideAWindow) {
  for (int32_t place = 0; place < 4; ++place) {
    Replica replica(Options(3), 400);
    GenerationRequest request;
    request.stop_token_ids = {-1, TextAt(6 + place)};
    replica.Add(0, 5, 30, request);
    EXPECT_EQ(replica.Drain(), 2);
    EXPECT_EQ(replica.Last(0).finish_reason, FinishReason::kStop);
    EXPECT_EQ(replica.Tokens(0), Text(5, 2 + place));
    const RequestStatistics& s = replica.Last(0).statistics;
    EXPECT_EQ(s.verify_steps, 1);
    EXPECT_EQ(s.drafted, 3);
    // All three drafts were equal to the target's tokens; the stop token may be one of them.
    EXPECT_EQ(s.accepted, std::min(place + 1, 3));
    EXPECT_EQ(s.verify_emitted, place + 1);
    EXPECT_EQ(replica.scheduler().status().accepted, s.accepted);
    EXPECT_EQ(replica.scheduler().status().verify_emitted, s.verify_emitted);
    EXPECT_EQ(replica.scheduler().status().drafted, 3);
    EXPECT_EQ(replica.scheduler().status().generated_tokens, 2 + place);
  }
}

TEST(Scheduler, LogprobsBelongToTheirTokens) {
  Replica replica(Options(3), 400);
  GenerationRequest request;
  request.logprobs = 0;
  replica.Add(0, 5, 12, request);
  replica.Drain();
  std::vector<TokenLogprob> logprobs;
  for (const TokenEvent& e : replica.events[0]) {
    EXPECT_EQ(e.logprobs.size(), e.tokens.size());
    logprobs.insert(logprobs.end(), e.logprobs.begin(), e.logprobs.end());
  }
  ASSERT_EQ(logprobs.size(), 12u);
  for (int32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(logprobs[i].token, TextAt(5 + i));
    EXPECT_EQ(logprobs[i].logprob, -static_cast<float>(5 + i));
  }
}

TEST(Scheduler, PromptLogprobsInChunksOf64Rows) {
  Replica replica(Options(3), 400);
  GenerationRequest request;
  request.prompt_logprobs = 0;
  replica.Add(0, 150, 1, request);
  replica.Add(1, 70, 1, request);
  replica.Add(2, 30, 1);  // wants none: not held back
  bool together = false;
  for (StepPlan plan = replica.Propose(); plan.has_work; plan = replica.Propose()) {
    int32_t rows = 0;
    for (const PlanSequence& s : plan.sequences) {
      rows += s.prompt_logprobs >= 0 ? s.num_rows : 0;
      together |= s.request_id == 2 && plan.sequences.size() > 1;
    }
    EXPECT_LE(rows, kMaxPromptLogprobRows);
    replica.Run(std::move(plan));
  }
  EXPECT_TRUE(together);
  for (const auto& [id, size] : {std::pair(0, 150), {1, 70}}) {
    std::vector<TokenLogprob> logprobs;
    for (const TokenEvent& e : replica.events[id]) {
      logprobs.insert(logprobs.end(), e.prompt_logprobs.begin(), e.prompt_logprobs.end());
    }
    ASSERT_EQ(logprobs.size(), size - 1u);
    for (int32_t i = 1; i < size; ++i) EXPECT_EQ(logprobs[i - 1].token, TextAt(i));
  }
}

TEST(Scheduler, MinTokensMasksStopsUntilTheyAreReached) {
  Replica replica(Options(3), 400);
  GenerationRequest request;
  request.stop_token_ids = {7, TextAt(16)};
  request.min_tokens = 6;
  replica.Add(0, 5, 20, request);
  bool masked = true;
  for (StepPlan plan = replica.Propose(); plan.has_work; plan = replica.Propose()) {
    const PlanSequence& s = plan.sequences.at(0);
    EXPECT_EQ(s.min_end, 11);
    EXPECT_EQ(s.num_stops, s.start + 1 < 11 ? 2 : 0);
    if (s.num_stops > 0) {
      EXPECT_EQ(plan.tokens.at(s.stop_begin), 7);
      EXPECT_EQ(plan.tokens.at(s.stop_begin + 1), TextAt(16));
    }
    masked = s.num_stops > 0;
    replica.Run(std::move(plan));
  }
  EXPECT_FALSE(masked);
  EXPECT_EQ(replica.Tokens(0), Text(5, 12));
}

TEST(Scheduler, TimeOutsEndRunningQueuedAndArriving) {
  using std::chrono::seconds;
  const Scheduler::Clock::time_point start{seconds(1000)};
  Replica replica(Options(3, 1), 400);
  GenerationRequest request;
  request.timeout_seconds = 2.5;
  replica.now = start;
  replica.Add(0, 5, 300, request);
  replica.Add(1, 5, 300, request);
  replica.Add(2, 5, 20);
  request.arrival_step = 1000;
  replica.Add(3, 5, 300, request);
  for (int i = 0; i < 3; ++i) {
    replica.now += seconds(1);
    replica.Run(replica.Propose());
  }
  for (const uint64_t id : {0, 1, 3}) {
    EXPECT_EQ(replica.Last(id).finish_reason, FinishReason::kTimeout) << id;
  }
  EXPECT_EQ(replica.Tokens(0), Text(5, 5));  // two steps: a chunk's and a full window's
  EXPECT_TRUE(replica.Tokens(1).empty());
  replica.Drain();
  EXPECT_EQ(replica.Tokens(2), Text(5, 20));
  EXPECT_EQ(replica.num_free(), 400);
}

// Two long requests on blocks for one and a half: the newer one is preempted in its window, and
// computes everything before its last token again.
TEST(Scheduler, TheNewestIsPreemptedAndResumesAtItsLastToken) {
  Replica replica(Options(3, 4, 16), 30);  // 120 slots
  replica.Add(0, 30, 50);
  replica.Add(1, 30, 50);
  replica.draft_is_right = [](int32_t position) { return position % 3 != 0; };
  int resumed_chunks = 0;
  for (StepPlan plan = replica.Propose(); plan.has_work; plan = replica.Propose()) {
    for (const PlanSequence& s : plan.sequences) {
      if (!s.resumed || !s.is_chunk()) continue;
      EXPECT_EQ(s.request_id, 1u);
      EXPECT_FALSE(s.emits());
      EXPECT_EQ(s.prefill_end, 30 + static_cast<int32_t>(replica.Tokens(1).size()) - 1);
      // Its tokens and the one that follows them, prompt or not, are all given.
      const int32_t count = std::min(s.num_rows + 1, s.prefill_end + 1 - s.start);
      for (int32_t i = 0; i < count; ++i) {
        EXPECT_EQ(plan.tokens.at(s.token_begin + i), TextAt(s.start + i));
      }
      EXPECT_EQ(s.head_rows(), s.is_final_chunk() ? 1 : 0);
      if (s.is_final_chunk()) {
        EXPECT_GT(s.useful_drafts(3), 0);
      }
      ++resumed_chunks;
    }
    replica.Run(std::move(plan));
  }
  EXPECT_GT(resumed_chunks, 1);
  EXPECT_EQ(replica.Tokens(0), Text(30, 50));
  EXPECT_EQ(replica.Tokens(1), Text(30, 50));
  EXPECT_EQ(replica.Last(0).statistics.preemptions, 0);
  EXPECT_GE(replica.Last(1).statistics.preemptions, 1);
  const ReplicaStatus status = replica.scheduler().status();
  EXPECT_EQ(status.preemptions, replica.Last(1).statistics.preemptions);
  EXPECT_GE(status.preempted_windows, 1);
  EXPECT_EQ(status.prompt_tokens, 60);  // rows computed again are not counted again
  EXPECT_EQ(status.generated_tokens, 100);
}

TEST(Scheduler, APromptIsPreemptedInItsMiddleAndReportsItsLogprobsOnce) {
  Replica replica(Options(3, 4, 4), 30);
  replica.Add(0, 10, 100);
  GenerationRequest request;
  request.prompt_logprobs = 0;
  request.arrival_step = 6;
  replica.draft_is_right = [](int32_t) { return false; };
  replica.Add(1, 80, 10, request);
  replica.Drain();
  EXPECT_GE(replica.scheduler().status().preempted_prefills, 1);
  EXPECT_EQ(replica.Tokens(0), Text(10, 100));
  EXPECT_EQ(replica.Tokens(1), Text(80, 10));
  std::vector<TokenLogprob> logprobs;
  for (const TokenEvent& e : replica.events[1]) {
    logprobs.insert(logprobs.end(), e.prompt_logprobs.begin(), e.prompt_logprobs.end());
  }
  ASSERT_EQ(logprobs.size(), 79u);
  for (int32_t i = 1; i < 80; ++i) EXPECT_EQ(logprobs[i - 1].token, TextAt(i));
}

// Watches plan after plan: whoever loses its window is newer than everybody who brings rows.
class NewestFirst {
 public:
  explicit NewestFirst(std::map<uint64_t, int64_t> order) : order_(std::move(order)) {}

  void Check(Replica& replica, const StepPlan& plan) {
    std::set<uint64_t> windows;
    for (const PlanSequence& s : plan.sequences) {
      if (!s.is_chunk()) windows.insert(s.request_id);
    }
    for (const uint64_t id : windows_) {
      const bool ended = replica.Last(id).finish_reason != FinishReason::kNone;
      if (ended || windows.contains(id)) continue;
      ++lost;
      for (const PlanSequence& s : plan.sequences) {
        EXPECT_LE(order_.at(s.request_id), order_.at(id))
            << "request " << s.request_id << " has rows, the older " << id << " lost its blocks";
      }
    }
    windows_ = std::move(windows);
  }

  int lost = 0;

 private:
  const std::map<uint64_t, int64_t> order_;  // of arrival
  std::set<uint64_t> windows_;               // of the plan before
};

// A prompt without a computed row has nothing to lose: it is put back without being counted.
TEST(Scheduler, NoRowsNoPreemption) {
  Replica replica(Options(0, 4, 4), 30);
  replica.Add(0, 8, 60);
  replica.Add(1, 60, 4);
  replica.Add(2, 40, 4);  // has blocks, but the prompt before it takes all rows
  bool put_back = false;
  for (StepPlan plan = replica.Propose(); plan.has_work; plan = replica.Propose()) {
    const ReplicaStatus status = replica.scheduler().status();
    if (status.running == 2 && status.queued == 1 && replica.events[1].empty()) {
      put_back = true;
      EXPECT_EQ(status.preemptions, 0);
    }
    replica.Run(std::move(plan));
  }
  EXPECT_TRUE(put_back);
  EXPECT_EQ(replica.Tokens(2), Text(40, 4));
}

// However tight the pool: everyone ends, in bounded steps, nobody is preempted a third time, and
// the newest goes first.
TEST(Scheduler, NobodyIsPreemptedForever) {
  std::mt19937 random(5);
  int64_t prefills = 0, windows = 0, twice = 0;
  for (int round = 0; round < 60; ++round) {
    const int32_t k = static_cast<int32_t>(random() % 4);
    SchedulerOptions options = Options(k, 8, 1 + random() % 32);
    options.context_length = 120;
    const int32_t num_blocks = 30 + static_cast<int32_t>(random() % 20);  // one request's at least
    Replica replica(options, num_blocks);
    replica.draft_is_right = [&](int32_t) { return random() % 2 == 0; };
    std::map<uint64_t, std::pair<int32_t, int32_t>> wanted;
    std::map<uint64_t, int64_t> order;
    for (uint64_t id = 0; id < 12; ++id) {
      GenerationRequest request;
      request.arrival_step = random() % 30;
      order[id] = request.arrival_step * 12 + static_cast<int64_t>(id);
      const int32_t prompt = 1 + random() % 60, max_tokens = 1 + random() % 60;
      wanted[id] = {prompt, std::min(max_tokens, 120 - prompt)};
      replica.Add(id, prompt, max_tokens, request);
    }
    int64_t steps = 0;
    NewestFirst newest_first(order);
    for (StepPlan plan = replica.Propose(); plan.has_work; plan = replica.Propose()) {
      newest_first.Check(replica, plan);
      if (steps > 40) {
        EXPECT_FALSE(plan.sequences.empty());
      }
      ASSERT_LT(++steps, 12 * 3 * 120);
      replica.Run(std::move(plan), random() % 2 ? kNoPromptLimit : 1 + random() % 8);
    }
    for (const auto& [id, size] : wanted) {
      EXPECT_EQ(replica.Tokens(id), Text(size.first, size.second)) << "request " << id;
      EXPECT_LE(replica.Last(id).statistics.preemptions, 2);
    }
    const ReplicaStatus status = replica.scheduler().status();
    EXPECT_GE(status.preemptions, status.preempted_prefills + status.preempted_windows);
    prefills += status.preempted_prefills;
    windows += status.preempted_windows;
    twice += status.preempted_twice;
    EXPECT_EQ(replica.num_free(), num_blocks);
    EXPECT_EQ(replica.num_promised(), 0);
  }
  EXPECT_GT(prefills, 0);
  EXPECT_GT(windows, 0);
  EXPECT_GT(twice, 0);
}

// The oldest never loses its blocks, so it is done as soon as it would be alone.
TEST(Scheduler, TheOldestRunsAsIfAlone) {
  Replica alone(Options(2, 8, 16), 30), beside(Options(2, 8, 16), 30);
  alone.Add(0, 40, 60);
  beside.Add(0, 40, 60);
  for (uint64_t id = 1; id < 6; ++id) beside.Add(id, 20, 40);
  alone.Drain();
  beside.Drain();
  EXPECT_EQ(alone.Last(0).statistics.steps, beside.Last(0).statistics.steps);
  EXPECT_EQ(alone.Last(0).step, beside.Last(0).step);
  EXPECT_GT(beside.scheduler().status().preemptions, 0);
}

enum class End { kStop, kLength, kContext, kRunning, kPrefilling, kQueued, kArriving, kNoToken };

class EndTest : public testing::TestWithParam<End> {};

TEST_P(EndTest, AllBlocksAreBackBeforeTheLastEvent) {
  Replica replica(Options(3, 1, 16), 120);
  const End end = GetParam();
  GenerationRequest request;
  if (end == End::kStop) request.stop_token_ids = {TextAt(53)};
  if (end == End::kArriving) request.arrival_step = 1000;
  if (end == End::kNoToken) replica.broken_position = 54;
  if (end == End::kQueued) replica.Add(7, 50, 100);
  if (end == End::kContext) {
    replica.Add(0, 390, 1000, request);
  } else {
    replica.Add(0, 50, 30, request);
  }
  FinishReason expected = FinishReason::kCancelled;
  if (end == End::kStop) expected = FinishReason::kStop;
  if (end == End::kNoToken) expected = FinishReason::kError;
  if (end == End::kLength || end == End::kContext) expected = FinishReason::kLength;
  if (expected == FinishReason::kCancelled) {
    const int steps = end == End::kPrefilling ? 2 : 6;
    for (int i = 0; i < steps; ++i) replica.Run(replica.Propose());
    replica.scheduler().Cancel(12345);  // unknown
    replica.scheduler().Cancel(0);
  }
  replica.Drain();
  EXPECT_EQ(replica.Last(0).finish_reason, expected);
  for (size_t i = 0; i + 1 < replica.events[0].size(); ++i) {
    EXPECT_EQ(replica.events[0][i].finish_reason, FinishReason::kNone);
  }
  EXPECT_EQ(replica.Last(0).error.empty(), end != End::kNoToken);
  if (end == End::kQueued) {
    EXPECT_EQ(replica.Tokens(7), Text(50, 100));
    EXPECT_TRUE(replica.Tokens(0).empty());
  } else {
    EXPECT_EQ(replica.free_at_end.at(0), 120);
  }
  EXPECT_EQ(replica.num_free(), 120);
  EXPECT_EQ(replica.num_promised(), 0);
  EXPECT_EQ(replica.scheduler().status().running, 0);
  EXPECT_EQ(replica.scheduler().status().queued, 0);
  EXPECT_EQ(replica.scheduler().status().kv_tokens_used, 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, EndTest,
                         testing::Values(End::kStop, End::kLength, End::kContext, End::kRunning,
                                         End::kPrefilling, End::kQueued, End::kArriving,
                                         End::kNoToken));

TEST(Scheduler, EndAllEndsRunningQueuedAndArriving) {
  for (const FinishReason reason : {FinishReason::kCancelled, FinishReason::kError}) {
    Replica replica(Options(3, 1), 120);
    GenerationRequest late;
    late.arrival_step = 1000;
    replica.Add(0, 50, 30);
    replica.Add(1, 50, 30);
    replica.Add(2, 50, 30, late);
    for (int i = 0; i < 3; ++i) replica.Run(replica.Propose());
    replica.Propose();
    replica.scheduler().EndAll(reason, "why");
    for (uint64_t id = 0; id < 3; ++id) {
      EXPECT_EQ(replica.Last(id).finish_reason, reason);
      EXPECT_EQ(replica.Last(id).error, "why");
    }
    EXPECT_FALSE(replica.Propose().has_work);
    EXPECT_EQ(replica.num_free(), 120);
    EXPECT_EQ(replica.num_promised(), 0);
  }
}

// Random requests, acceptance, cuts and cancels; Replica::CheckBlocks looks at every plan.
TEST(Scheduler, EverySlotOfAStepIsReserved) {
  std::mt19937 random(11);
  for (const int32_t block_size : {1, 3, 16, 1000}) {
    for (const int32_t k : {0, 1, 3, 8}) {
      SchedulerOptions options = Options(k, 4, 16);
      options.block_size = block_size;
      const int32_t num_blocks = static_cast<int32_t>(CeilDiv(400, block_size)) * 2;
      Replica replica(options, num_blocks);
      replica.draft_is_right = [&](int32_t) { return random() % 3 != 0; };
      std::map<uint64_t, std::pair<int32_t, int32_t>> wanted;
      for (uint64_t id = 0; id < 20; ++id) {
        GenerationRequest request;
        request.arrival_step = random() % 20;
        const int32_t prompt = 1 + random() % (id % 4 == 0 ? 399 : 40);
        const int32_t max_tokens = 1 + random() % 30;
        wanted[id] = {prompt, std::min(max_tokens, 400 - prompt)};
        replica.Add(id, prompt, max_tokens, request);
      }
      for (StepPlan plan = replica.Propose(); plan.has_work; plan = replica.Propose()) {
        if (replica.step() == 12) replica.scheduler().Cancel(4);
        replica.Run(std::move(plan), random() % 2 ? kNoPromptLimit : 1 + random() % 16);
      }
      for (const auto& [id, size] : wanted) {
        if (replica.Last(id).finish_reason == FinishReason::kCancelled) continue;
        EXPECT_EQ(replica.Tokens(id), Text(size.first, size.second)) << "request " << id;
      }
      EXPECT_EQ(replica.num_free(), num_blocks);
      EXPECT_EQ(replica.num_promised(), 0);
    }
  }
}

}  // namespace
}  // namespace tandem
