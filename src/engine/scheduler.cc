#include "engine/scheduler.h"

#include <algorithm>

namespace tandem {

struct Scheduler::Sequence {
  GenerationRequest request;
  EventSink sink;
  std::vector<int32_t> tokens;  // prompt, then what was emitted
  std::vector<int32_t> drafts;  // for the next window
  std::vector<int32_t> blocks;
  int32_t promised = 0;
  int32_t limit = 0;
  int32_t computed = 0;  // rows whose target latents are in the cache
  bool cancelled = false;
  bool finished = false;
  RequestStatistics statistics;

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  bool decoding() const { return computed >= prompt_size(); }
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

void Scheduler::Add(GenerationRequest request, EventSink sink) {
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = request.prompt;
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

// Moves what has arrived into the queue and from there, in order, into the running set while blocks
// and places last.
void Scheduler::Admit(int64_t step) {
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    if ((*it)->request.arrival_step > step && !(*it)->cancelled) {
      ++it;
      continue;
    }
    queue_.push_back(std::move(*it));
    it = arriving_.erase(it);
  }
  const auto end_cancelled = [&](auto& list) {
    for (auto& sequence : list) {
      if (!sequence->cancelled || sequence->finished) continue;
      TokenEvent event;
      event.step = step;
      event.finish_reason = FinishReason::kCancelled;
      Finish(*sequence, std::move(event));
    }
    std::erase_if(list, [](const auto& sequence) { return sequence->finished; });
  };
  end_cancelled(queue_);
  end_cancelled(running_);
  while (!queue_.empty() && static_cast<int32_t>(running_.size()) < options_.max_num_seqs) {
    Sequence& next = *queue_.front();
    const int32_t blocks = static_cast<int32_t>(CeilDiv(next.limit, options_.block_size));
    if (!pool_.Promise(blocks)) return;  // first come, first served: nobody overtakes
    next.promised = blocks;
    running_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

void Scheduler::Reserve(Sequence& sequence, int32_t last_slot) {
  last_slot = std::min(last_slot, sequence.limit - 1);
  while (static_cast<int32_t>(sequence.blocks.size()) * options_.block_size <= last_slot) {
    sequence.blocks.push_back(pool_.Take());
  }
}

void Scheduler::Plan(Sequence& sequence, PlanSequence entry, int32_t last_slot, StepPlan& plan) {
  Reserve(sequence, last_slot);
  entry.request_id = sequence.request.id;
  entry.sampling = sequence.request.sampling;
  entry.prompt_size = sequence.prompt_size();
  entry.limit = sequence.limit;
  entry.logprobs = sequence.request.logprobs;
  entry.prompt_logprobs = sequence.request.prompt_logprobs;
  entry.block_begin = static_cast<int32_t>(plan.blocks.size());
  entry.num_blocks = static_cast<int32_t>(sequence.blocks.size());
  plan.blocks.insert(plan.blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  plan.sequences.push_back(entry);
}

bool Scheduler::PlanWindow(Sequence& sequence, StepPlan& plan) {
  if (!sequence.decoding()) return false;
  PlanSequence entry;
  entry.kind = RowKind::kWindow;
  entry.start = static_cast<int32_t>(sequence.tokens.size()) - 1;
  entry.num_rows = 1 + static_cast<int32_t>(sequence.drafts.size());
  entry.token_begin = static_cast<int32_t>(plan.tokens.size());
  plan.tokens.push_back(sequence.tokens.back());
  plan.tokens.insert(plan.tokens.end(), sequence.drafts.begin(), sequence.drafts.end());
  const int32_t k = std::max(options_.num_draft_tokens, 1);
  Plan(sequence, entry, entry.start + entry.num_rows - 1 + k, plan);
  return true;
}

// Plans up to `rows` prompt rows; returns how many.
int32_t Scheduler::PlanChunk(Sequence& sequence, int32_t rows, StepPlan& plan) {
  if (sequence.request.prompt_logprobs >= 0) rows = std::min(rows, kMaxPromptLogprobRows);
  PlanSequence entry;
  entry.kind = RowKind::kChunk;
  entry.start = sequence.computed;
  entry.num_rows = std::min(rows, sequence.prompt_size() - sequence.computed);
  entry.token_begin = static_cast<int32_t>(plan.tokens.size());
  const int32_t end = entry.start + entry.num_rows;
  const auto first = sequence.tokens.begin() + entry.start;
  const auto last = sequence.tokens.begin() + std::min(end + 1, sequence.prompt_size());
  plan.tokens.insert(plan.tokens.end(), first, last);
  Plan(sequence, entry, end + std::max(options_.num_draft_tokens, 1), plan);
  return entry.num_rows;
}

StepPlan Scheduler::Propose(int64_t step) {
  Admit(step);
  StepPlan plan;
  plan.has_work = !running_.empty() || !queue_.empty() || !arriving_.empty();
  for (auto& sequence : running_) PlanWindow(*sequence, plan);
  int32_t rows = options_.chunked_prefill_size;
  int32_t logprob_rows = kMaxPromptLogprobRows;
  for (auto& sequence : running_) {
    if (sequence->decoding()) continue;
    const bool logprobs = sequence->request.prompt_logprobs >= 0;
    const int32_t budget = logprobs ? std::min(rows, logprob_rows) : rows;
    if (budget <= 0) continue;
    const int32_t planned = PlanChunk(*sequence, budget, plan);
    rows -= planned;
    if (logprobs) logprob_rows -= planned;
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
    totals_.prompt_tokens += entry.num_rows;
    const int32_t targets = entry.prompt_logprobs < 0 ? 0 : head_rows - (entry.emits() ? 1 : 0);
    for (int32_t i = 0; i < targets; ++i) {
      event.prompt_logprobs.push_back(
          ToLogprob(head[i], sequence.request.prompt[entry.start + i + 1]));
    }
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
