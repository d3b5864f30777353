#include "engine/scheduler.h"

#include <algorithm>

namespace tandem {
namespace {

// How often a request can lose its blocks: when it is let in after that, all that it can ever need
// is promised to it, and it runs to its end. Two, since the first may fall on any request, and a
// second one right after a bad estimate of the room there is.
constexpr int32_t kMaxPreemptions = 2;

}  // namespace

struct Scheduler::Sequence {
  GenerationRequest request;
  EventSink sink;
  std::optional<Clock::time_point> deadline;
  std::vector<int32_t> tokens;  // prompt, then what was emitted
  std::vector<int32_t> drafts;  // for the next window
  std::vector<int32_t> blocks;
  int32_t promised = 0;
  int32_t limit = 0;
  int32_t computed = 0;       // rows whose target latents are in the cache
  int32_t prefill_end = 0;    // rows to compute by chunks before the next window
  int32_t reported_rows = 0;  // prompt rows computed so far, before preemptions too
  int32_t planned_rows = 0;   // of the step being proposed
  bool cancelled = false;
  bool finished = false;
  RequestStatistics statistics;

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  bool decoding() const { return computed >= prefill_end; }
  // Chunks compute rows again, and the token after them is known.
  bool resumed() const { return prefill_end < static_cast<int32_t>(tokens.size()); }
  bool runs_to_its_end() const { return statistics.preemptions >= kMaxPreemptions; }
  // Before a token is emitted only: all of them have been reported then.
  bool wants_prompt_logprobs() const { return request.prompt_logprobs >= 0 && !resumed(); }
};

int32_t AcceptedDrafts(std::span<const int32_t> window_tokens, const SampleResult* sampled) {
  int32_t accepted = 0;
  while (accepted + 1 < static_cast<int32_t>(window_tokens.size()) &&
         sampled[accepted].token == window_tokens[accepted + 1]) {
    ++accepted;
  }
  return accepted;
}

Scheduler::Scheduler(const SchedulerOptions& options, int32_t num_blocks)
    : options_(options), pool_(num_blocks) {
  totals_.accepted_per_position.resize(options.num_draft_tokens);
}

Scheduler::~Scheduler() = default;

void Scheduler::Add(GenerationRequest request, EventSink sink, Clock::time_point now) {
  auto sequence = std::make_unique<Sequence>();
  if (request.timeout_seconds > 0) {
    sequence->deadline = now + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(request.timeout_seconds));
  }
  sequence->tokens = request.prompt;
  sequence->prefill_end = static_cast<int32_t>(request.prompt.size());
  sequence->limit = static_cast<int32_t>(std::min<int64_t>(
      options_.context_length, static_cast<int64_t>(request.prompt.size()) + request.max_tokens));
  sequence->request = std::move(request);
  sequence->sink = std::move(sink);
  sequence->statistics.accepted_per_position.resize(options_.num_draft_tokens);
  arriving_.push_back(std::move(sequence));
}

void Scheduler::Cancel(uint64_t request_id) {
  const auto mark = [&](auto& list) {
    for (auto& sequence : list) {
      if (sequence->request.id == request_id) sequence->cancelled = true;
    }
  };
  mark(arriving_);
  mark(queue_);
  mark(running_);
}

void Scheduler::EndAll(FinishReason reason, const std::string& error) {
  const auto end = [&](auto& list) {
    for (auto& sequence : list) {
      if (sequence->finished) continue;
      TokenEvent event;
      event.finish_reason = reason;
      event.error = error;
      Finish(*sequence, std::move(event));
    }
    list.clear();
  };
  end(running_);
  end(queue_);
  end(arriving_);
}

// Ends what was cancelled or has run out of time; moves what has arrived into the queue.
void Scheduler::Arrive(int64_t step, Clock::time_point now) {
  const auto end_overdue = [&](auto& list) {
    for (auto& sequence : list) {
      const bool overdue = sequence->deadline && now >= *sequence->deadline;
      if (!sequence->cancelled && !overdue) continue;
      TokenEvent event;
      event.step = step;
      event.finish_reason = sequence->cancelled ? FinishReason::kCancelled : FinishReason::kTimeout;
      Finish(*sequence, std::move(event));
    }
    std::erase_if(list, [](const auto& sequence) { return sequence->finished; });
  };
  end_overdue(arriving_);
  end_overdue(queue_);
  end_overdue(running_);
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    if ((*it)->request.arrival_step > step) {
      ++it;
      continue;
    }
    queue_.push_back(std::move(*it));
    it = arriving_.erase(it);
  }
}

// Lets in, in order, what has room for its known tokens and one window, which are promised to it,
// so that chunks always find their blocks; nobody overtakes. Who runs to its end is promised all
// its slots, and so is everybody older: otherwise an older one could need what it holds.
void Scheduler::Admit() {
  while (!queue_.empty() && static_cast<int32_t>(running_.size()) < options_.max_num_seqs) {
    Sequence& next = *queue_.front();
    if (next.runs_to_its_end()) {
      if (!PromiseAllTo(next)) return;
    } else {
      const int32_t last_slot = next.prefill_end + std::max(options_.num_draft_tokens, 1);
      const int32_t blocks = BlocksThrough(next, last_slot);
      if (!pool_.Promise(blocks)) return;
      next.promised = blocks;
    }
    running_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

// Promises their whole length to `next` and to all that run, or nothing to anybody.
bool Scheduler::PromiseAllTo(Sequence& next) {
  int32_t missing = BlocksThrough(next, next.limit - 1);
  for (const auto& older : running_) {
    missing += BlocksThrough(*older, older->limit - 1) - older->promised;
  }
  if (!pool_.Promise(missing)) return false;
  next.promised = BlocksThrough(next, next.limit - 1);
  for (auto& older : running_) older->promised = BlocksThrough(*older, older->limit - 1);
  return true;
}

int32_t Scheduler::BlocksThrough(const Sequence& sequence, int32_t last_slot) const {
  return std::min(last_slot, sequence.limit - 1) / options_.block_size + 1;
}

// Hands out the blocks through `last_slot`, or none of them if the pool has not enough.
bool Scheduler::Reserve(Sequence& sequence, int32_t last_slot) {
  const int32_t blocks = BlocksThrough(sequence, last_slot);
  if (blocks > sequence.promised) {
    if (!pool_.Promise(blocks - sequence.promised)) return false;
    sequence.promised = blocks;
  }
  while (static_cast<int32_t>(sequence.blocks.size()) < blocks) {
    sequence.blocks.push_back(pool_.Take());
  }
  return true;
}

// Takes the blocks of the newest running sequence and puts it back into the queue, before all that
// are newer still.
void Scheduler::PreemptNewest() {
  Sequence& sequence = *running_.back();
  // Who runs to its end, and all older ones, have what they need: only newer ones ask for more.
  CHECK(!sequence.runs_to_its_end());
  CountPreemption(sequence);
  pool_.Return(sequence.blocks, sequence.promised);
  sequence.blocks.clear();
  sequence.promised = 0;
  sequence.drafts.clear();
  sequence.computed = 0;
  sequence.planned_rows = 0;
  const int32_t tokens = static_cast<int32_t>(sequence.tokens.size());
  sequence.prefill_end = tokens > sequence.prompt_size() ? tokens - 1 : tokens;
  queue_.push_front(std::move(running_.back()));
  running_.pop_back();
}

// Only what costs rows counts: a sequence without any has lost nothing.
void Scheduler::CountPreemption(Sequence& sequence) {
  if (sequence.computed == 0) return;
  ++totals_.preemptions;
  if (sequence.decoding()) {
    ++totals_.preempted_windows;
  } else if (!sequence.resumed()) {
    ++totals_.preempted_prefills;
  }
  if (++sequence.statistics.preemptions == 2) ++totals_.preempted_twice;
}

// Hands out the blocks of all windows, oldest first, at the cost of the newest sequence, which may
// be the one that asks.
void Scheduler::ReserveWindows() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) continue;
    const int32_t rows = 1 + static_cast<int32_t>(sequence.drafts.size());
    const int32_t last_row = static_cast<int32_t>(sequence.tokens.size()) + rows - 2;
    while (i < running_.size() &&
           !Reserve(sequence, last_row + std::max(options_.num_draft_tokens, 1))) {
      PreemptNewest();
    }
    if (i < running_.size()) sequence.planned_rows = rows;
  }
}

// Decides how many rows each prompt brings and hands out their blocks, which are promised.
void Scheduler::ReserveChunks() {
  int32_t rows = options_.chunked_prefill_size;
  int32_t logprob_rows = kMaxPromptLogprobRows;
  for (auto& running : running_) {
    Sequence& sequence = *running;
    if (sequence.decoding()) continue;
    const bool logprobs = sequence.wants_prompt_logprobs();
    const int32_t most = logprobs ? std::min(rows, logprob_rows) : rows;
    sequence.planned_rows = std::min(most, sequence.prefill_end - sequence.computed);
    const int32_t end = sequence.computed + sequence.planned_rows;
    CHECK(Reserve(sequence, end + std::max(options_.num_draft_tokens, 1)));
    rows -= sequence.planned_rows;
    if (logprobs) logprob_rows -= sequence.planned_rows;
  }
}

void Scheduler::Plan(Sequence& sequence, PlanSequence entry, StepPlan& plan) {
  const GenerationRequest& request = sequence.request;
  entry.request_id = request.id;
  entry.sampling = request.sampling;
  entry.num_rows = sequence.planned_rows;
  entry.prefill_end = sequence.prefill_end;
  entry.resumed = sequence.resumed();
  entry.limit = sequence.limit;
  entry.logprobs = request.logprobs;
  entry.prompt_logprobs = sequence.wants_prompt_logprobs() ? request.prompt_logprobs : -1;
  entry.block_begin = static_cast<int32_t>(plan.blocks.size());
  entry.num_blocks = static_cast<int32_t>(sequence.blocks.size());
  plan.blocks.insert(plan.blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  entry.min_end = sequence.prompt_size() + request.min_tokens;
  // The first token that this step or its drafts choose stands behind its first row.
  if (entry.start + 1 < entry.min_end) {
    entry.stop_begin = static_cast<int32_t>(plan.tokens.size());
    entry.num_stops = static_cast<int32_t>(request.stop_token_ids.size());
    plan.tokens.insert(plan.tokens.end(), request.stop_token_ids.begin(),
                       request.stop_token_ids.end());
  }
  plan.sequences.push_back(entry);
}

void Scheduler::PlanWindow(Sequence& sequence, StepPlan& plan) {
  PlanSequence entry;
  entry.kind = RowKind::kWindow;
  entry.start = static_cast<int32_t>(sequence.tokens.size()) - 1;
  entry.token_begin = static_cast<int32_t>(plan.tokens.size());
  plan.tokens.push_back(sequence.tokens.back());
  plan.tokens.insert(plan.tokens.end(), sequence.drafts.begin(), sequence.drafts.end());
  Plan(sequence, entry, plan);
}

void Scheduler::PlanChunk(Sequence& sequence, StepPlan& plan) {
  PlanSequence entry;
  entry.kind = RowKind::kChunk;
  entry.start = sequence.computed;
  entry.token_begin = static_cast<int32_t>(plan.tokens.size());
  const int32_t end = entry.start + sequence.planned_rows;
  const int32_t known = static_cast<int32_t>(sequence.tokens.size());
  plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + entry.start,
                     sequence.tokens.begin() + std::min(end + 1, known));
  Plan(sequence, entry, plan);
}

StepPlan Scheduler::Propose(int64_t step, Clock::time_point now) {
  Arrive(step, now);
  // Windows first: who is let in must not lose its blocks at once.
  ReserveWindows();
  Admit();
  ReserveChunks();
  StepPlan plan;
  plan.has_work = !running_.empty() || !queue_.empty() || !arriving_.empty();
  for (auto& sequence : running_) {
    if (sequence->decoding()) PlanWindow(*sequence, plan);
  }
  for (auto& sequence : running_) {
    if (!sequence->decoding() && sequence->planned_rows > 0) PlanChunk(*sequence, plan);
  }
  return plan;
}

void Scheduler::Commit(const StepPlan& plan, const StepResults& results, int64_t step) {
  int64_t head = 0, drafting = 0;
  size_t at = 0;  // plan order: windows, then chunks, each in the order of running_
  for (const PlanSequence& entry : plan.sequences) {
    Sequence* sequence = nullptr;
    for (size_t tries = 0; tries < running_.size() && sequence == nullptr; ++tries) {
      Sequence& candidate = *running_[(at + tries) % running_.size()];
      if (candidate.request.id != entry.request_id) continue;
      sequence = &candidate;
      at += tries + 1;
    }
    CHECK(sequence != nullptr);
    const bool drafts = entry.useful_drafts(options_.num_draft_tokens) > 0;
    CommitSequence(*sequence, entry, results.head.data() + head,
                   drafts ? results.drafts.data() + drafting * kMaxDraftTokens : nullptr, step);
    head += entry.head_rows();
    drafting += drafts ? 1 : 0;
  }
  RemoveFinished();
}

namespace {

TokenLogprob ToLogprob(const SampleResult& result, int32_t token) {
  TokenLogprob logprob{token, result.logprob, {}};
  for (int i = 0; i < result.num_top; ++i) {
    logprob.top.emplace_back(result.top_token[i], result.top_logprob[i]);
  }
  return logprob;
}

}  // namespace

// Appends the tokens that a window (or a final chunk, a window of one row) emitted, cut by the stop
// rules.
void Scheduler::EmitWindow(Sequence& sequence, const PlanSequence& entry, const SampleResult* head,
                           TokenEvent& event) {
  const int32_t drafted = entry.is_chunk() ? 0 : entry.num_rows - 1;
  std::vector<int32_t> window(1, sequence.tokens.back());
  window.insert(window.end(), sequence.drafts.begin(), sequence.drafts.end());
  const int32_t matches = entry.is_chunk() ? 0 : AcceptedDrafts(window, head);
  for (int32_t i = 0; i <= matches && event.finish_reason == FinishReason::kNone; ++i) {
    const int32_t token = head[i].token;
    if (token < 0) {
      event.finish_reason = FinishReason::kError;
      event.error = "no token left to choose: the logits hold no finite number";
      break;
    }
    sequence.tokens.push_back(token);
    event.tokens.push_back(token);
    if (entry.logprobs >= 0) event.logprobs.push_back(ToLogprob(head[i], token));
    const auto& stops = sequence.request.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      event.finish_reason = FinishReason::kStop;
    } else if (static_cast<int32_t>(sequence.tokens.size()) >= sequence.limit) {
      event.finish_reason = FinishReason::kLength;
    }
  }
  const int32_t emitted = static_cast<int32_t>(event.tokens.size());
  totals_.generated_tokens += emitted;
  if (drafted == 0) return;
  const int32_t accepted = std::min(matches, emitted);
  RequestStatistics& s = sequence.statistics;
  ++s.verify_steps;
  s.drafted += drafted;
  s.accepted += accepted;
  s.verify_emitted += emitted;
  s.accepted_per_step.push_back(accepted);
  ++totals_.verify_steps;
  totals_.drafted += drafted;
  totals_.accepted += accepted;
  totals_.verify_emitted += emitted;
  for (int32_t i = 0; i < accepted; ++i) {
    ++s.accepted_per_position[i];
    ++totals_.accepted_per_position[i];
  }
}

void Scheduler::CommitSequence(Sequence& sequence, const PlanSequence& entry,
                               const SampleResult* head, const int32_t* drafts, int64_t step) {
  TokenEvent event;
  event.step = step;
  ++sequence.statistics.steps;
  const int32_t head_rows = entry.head_rows();
  if (entry.is_chunk()) {
    sequence.computed = entry.start + entry.num_rows;
    const int32_t targets = entry.prompt_logprobs < 0 ? 0 : head_rows - (entry.emits() ? 1 : 0);
    // Rows computed again after a preemption have been reported and counted.
    for (int32_t i = std::max(sequence.reported_rows - entry.start, 0); i < targets; ++i) {
      event.prompt_logprobs.push_back(
          ToLogprob(head[i], sequence.request.prompt[entry.start + i + 1]));
    }
    const int32_t reported = std::min(sequence.computed, sequence.prompt_size());
    totals_.prompt_tokens += std::max(reported - sequence.reported_rows, 0);
    sequence.reported_rows = std::max(reported, sequence.reported_rows);
  }
  if (entry.emits()) {
    EmitWindow(sequence, entry, entry.is_chunk() ? head + head_rows - 1 : head, event);
    sequence.computed = static_cast<int32_t>(sequence.tokens.size()) - 1;
  }
  sequence.drafts.clear();
  if (event.finish_reason != FinishReason::kNone) return Finish(sequence, std::move(event));
  if (drafts != nullptr) {
    const int32_t remaining = sequence.limit - static_cast<int32_t>(sequence.tokens.size());
    const int32_t most = std::min(options_.num_draft_tokens, remaining - 1);
    for (int32_t i = 0; i < most && drafts[i] >= 0; ++i) sequence.drafts.push_back(drafts[i]);
  }
  if (event.tokens.empty() && event.prompt_logprobs.empty()) return;
  event.request_id = sequence.request.id;
  sequence.sink(std::move(event));
}

void Scheduler::Finish(Sequence& sequence, TokenEvent event) {
  pool_.Return(sequence.blocks, sequence.promised);
  sequence.blocks.clear();
  sequence.promised = 0;
  sequence.finished = true;
  event.request_id = sequence.request.id;
  event.statistics = sequence.statistics;
  sequence.sink(std::move(event));
}

void Scheduler::RemoveFinished() {
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
}

ReplicaStatus Scheduler::status() const {
  ReplicaStatus status = totals_;
  status.running = static_cast<int32_t>(running_.size());
  status.queued = static_cast<int32_t>(queue_.size() + arriving_.size());
  status.kv_tokens_total = int64_t{pool_.num_blocks()} * options_.block_size;
  status.kv_tokens_used = int64_t{pool_.num_blocks() - pool_.num_free()} * options_.block_size;
  return status;
}

}  // namespace tandem
