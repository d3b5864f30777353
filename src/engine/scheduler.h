// One replica's scheduler: decides which rows of which requests the next step brings, owns their KV
// blocks, and turns a step's results into token events. First come, first served; runs on the
// replica leader's thread only.
//
// Invariants:
// 1. All blocks of a step are handed out before it. Who is let in has its known tokens' blocks
// promised. A window that finds none takes those of the newest running sequence, which goes back
// to the front of the queue and computes its rows again (preemption), and never more than twice
// those of the same one. Whatever runs is older than whatever waits.
// 2. Decoding sequences are in every step, whatever prompts wait beside them.
// 3. A resumed sequence computes the rows before its last token, which is taken as given; drafts
// start from there (DESIGN 7).
// 4. When a request ends, for whatever reason, its blocks are back in the pool before its last
// event is sent.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/block_pool.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/step_plan.h"

namespace tandem {

struct SchedulerOptions {
  int32_t context_length = 0;
  int32_t block_size = 16;
  int32_t max_num_seqs = 16;
  int32_t chunked_prefill_size = 512;
  int32_t num_draft_tokens = 0;
};

// Most prompt rows per step and replica whose log-probabilities are wanted: their logits are held
// together (64 rows of a 129,280-token vocabulary are 33 MB).
inline constexpr int32_t kMaxPromptLogprobRows = 64;

// What a step computed for one replica, in the order of the (truncated) plan.
struct StepResults {
  std::span<const SampleResult> head;  // one per head row
  std::span<const int32_t> drafts;     // [drafting sequence][kMaxDraftTokens]
};

// Accepted drafts of a window: the longest prefix of tokens[1..] equal to what was sampled at the
// row before.
int32_t AcceptedDrafts(std::span<const int32_t> window_tokens, const SampleResult* sampled);

class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;

  Scheduler(const SchedulerOptions& options, int32_t num_blocks);
  ~Scheduler();

  // Takes over a request that Engine::Submit has checked; its time-out runs from `now`.
  void Add(GenerationRequest request, EventSink sink, Clock::time_point now = {});
  // The request ends before its next rows; unknown ids are ignored.
  void Cancel(uint64_t request_id);
  // Ends everything, arriving, queued or running, for `reason`.
  void EndAll(FinishReason reason, const std::string& error);

  // The plan of step `step`; blocks for all its rows are handed out. The one place where time-outs
  // are decided: other ranks only see that a request is gone.
  StepPlan Propose(int64_t step, Clock::time_point now = {});
  // Appends what the plan's sequences emitted, sends events, frees what has finished.
  void Commit(const StepPlan& plan, const StepResults& results, int64_t step);

  ReplicaStatus status() const;
  const BlockPool& pool() const { return pool_; }

 private:
  struct Sequence;

  void Arrive(int64_t step, Clock::time_point now);
  void Admit();
  bool PromiseAllTo(Sequence& next);
  int32_t BlocksThrough(const Sequence& sequence, int32_t last_slot) const;
  bool Reserve(Sequence& sequence, int32_t last_slot);
  void PreemptNewest();
  void CountPreemption(Sequence& sequence);
  void ReserveWindows();
  void ReserveChunks();
  void PlanWindow(Sequence& sequence, StepPlan& plan);
  void PlanChunk(Sequence& sequence, StepPlan& plan);
  void Plan(Sequence& sequence, PlanSequence entry, StepPlan& plan);
  void CommitSequence(Sequence& sequence, const PlanSequence& entry, const SampleResult* head,
                      const int32_t* drafts, int64_t step);
  void EmitWindow(Sequence& sequence, const PlanSequence& entry, const SampleResult* head,
                  TokenEvent& event);
  void Finish(Sequence& sequence, TokenEvent event);
  void RemoveFinished();

  const SchedulerOptions options_;
  BlockPool pool_;
  std::deque<std::unique_ptr<Sequence>> arriving_;  // arrival_step not reached
  std::deque<std::unique_ptr<Sequence>> queue_;     // by order of arrival, as running_
  std::vector<std::unique_ptr<Sequence>> running_;
  ReplicaStatus totals_;
};

}  // namespace tandem
