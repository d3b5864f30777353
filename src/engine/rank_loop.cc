#include "engine/rank_loop.h"

#include "base/log.h"

namespace tandem {
namespace {

std::vector<LatentCache> CachesOf(const RankSetup& setup) {
  const ModelConfig& config = setup.weights->config();
  const int64_t slot_bytes =
      SlotBytes(setup.options.kv_format, config.kv_lora_rank, config.qk_rope_head_dim);
  std::vector<LatentCache> caches;
  // The target's layers and the draft layer; further MTP modules do not run.
  const int64_t layers = config.num_hidden_layers + (setup.weights->has_mtp() ? 1 : 0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    caches.push_back({setup.kv->layer(layer), slot_bytes, setup.options.block_size});
  }
  return caches;
}

}  // namespace

RankLoop::RankLoop(const RankSetup& setup)
    : setup_(setup),
      layout_(setup.weights->layout()),
      leader_(layout_.attn_rank(setup.rank) == 0),
      world_(setup.world->world(setup.rank)),
      group_(setup.world->group(setup.rank)),
      team_(setup.num_threads, setup.spin),
      inputs_(setup.limits, layout_, setup.rank, setup.options.num_draft_tokens) {
  const EngineOptions& options = setup.options;
  model_ =
      std::make_unique<RankModel>(*setup.weights, KernelsFor(*options.isa), setup.rank,
                                  setup.limits, options.kv_format, CachesOf(setup), world_, group_);
  rank_step_ = std::make_unique<RankStep>(*model_, inputs_, setup.limits,
                                          static_cast<int32_t>(setup.weights->config().vocab_size),
                                          options.num_draft_tokens, setup.num_threads, group_);
  TouchCache();
  if (!leader_) return;
  scheduler_.emplace(
      SchedulerOptions{options.context_length, options.block_size, options.max_num_seqs,
                       options.chunked_prefill_size, options.num_draft_tokens},
      setup.num_blocks);
  PublishStatus(step_);
}

// The pool's memory is there, in equal parts from each thread that will read it, before anyone
// serves: what does not fit fails now.
void RankLoop::TouchCache() {
  const bool shared = group_.shares_memory();
  const Range part =
      shared ? Share(setup_.kv->bytes(), layout_.attn_rank(setup_.rank), layout_.attn_tp_size())
             : Range{0, setup_.kv->bytes()};
  Program program;
  program.Add({"touch_cache"}, [&](const Worker& worker) {
    const Range own = Share(part.size(), worker.thread, worker.num_threads);
    setup_.kv->Touch(part.begin + own.begin, part.begin + own.end);
  });
  CHECK(program.Run(team_, nullptr).ok());
}

Status RankLoop::Run() {
  const Status status = RunSteps();
  if (!status.ok()) {
    setup_.world->Abort(status);
    setup_.on_failure(status);
  }
  if (leader_) {
    DrainMailbox();
    scheduler_->EndAll(status.ok() ? FinishReason::kCancelled : FinishReason::kError,
                       status.message());
    PublishStatus(step_);
  }
  return status;
}

Status RankLoop::RunSteps() {
  std::vector<StepRecord> records(layout_.tp_size());
  while (true) {
    std::vector<std::byte> message;
    if (leader_) message = Propose().Serialize();
    RETURN_IF_ERROR(group_.Broadcast({"plan"}, 0, message));
    StepPlan plan = StepPlan::Deserialize(message);
    const StepRecord record = MakeRecord(plan, commit_hash_, setup_.options.num_draft_tokens,
                                         setup_.options.max_step_rows, layout_, setup_.rank);
    RETURN_IF_ERROR(world_.AllGather({"record"}, &record, sizeof record, records.data()));
    ASSIGN_OR_RETURN(const GroupPlan group, Agree(records, layout_, setup_.options.max_step_rows));
    if (group.stop) return Status();
    if (group.any_work) {
      RETURN_IF_ERROR(Step(std::move(plan), group));
    } else {
      // A cancelled request may have ended without a step.
      if (leader_) PublishStatus(step_);
      setup_.shared->doorbell.wait(group.doorbell);
    }
  }
}

void RankLoop::DrainMailbox() {
  std::vector<ReplicaMailbox::Message> messages;
  {
    const std::lock_guard lock(setup_.mailbox->mutex);
    messages.swap(setup_.mailbox->messages);
  }
  for (ReplicaMailbox::Message& message : messages) {
    if (message.sink) {
      scheduler_->Add(std::move(message.request), std::move(message.sink), Scheduler::Clock::now());
    } else {
      scheduler_->Cancel(message.request.id);
    }
  }
}

StepPlan RankLoop::Propose() {
  // Read first: whoever rings after this wakes the ranks that sleep on this value.
  const uint32_t doorbell = setup_.shared->doorbell.load();
  const bool stop = setup_.shared->stop.load();
  DrainMailbox();
  StepPlan plan = scheduler_->Propose(step_, Scheduler::Clock::now());
  plan.doorbell = doorbell;
  plan.stop = stop;
  return plan;
}

Status RankLoop::Step(StepPlan plan, const GroupPlan& group) {
  plan.Truncate(group.max_prompt_rows);
  inputs_.Fill(plan, group);
  Program program;
  rank_step_->Record(program, group.k_draft);
  RETURN_IF_ERROR(program.Run(team_, setup_.options.hooks.row_tracer));
  commit_hash_ = rank_step_->CommitHash(commit_hash_);
  StepObservation observation;
  if (leader_) {
    scheduler_->Commit(
        plan,
        {{rank_step_->sampled(), static_cast<size_t>(inputs_.num_head_rows())},
         {rank_step_->drafts(), static_cast<size_t>(inputs_.num_draft_rows()) * kMaxDraftTokens}},
        step_);
    PublishStatus(step_ + 1);
    observation.blocks_in_use = scheduler_->pool().num_blocks() - scheduler_->pool().num_free();
  }
  if (setup_.options.hooks.on_step) {
    observation.rank = setup_.rank;
    observation.step = step_;
    observation.group = group;
    observation.plan = std::move(plan);
    observation.num_operations = program.num_operations();
    observation.num_collectives = program.num_collectives();
    if (setup_.options.hooks.trace_collectives) {
      observation.collectives = setup_.world->TakeTrace(setup_.rank);
    }
    setup_.options.hooks.on_step(observation);
  }
  ++step_;
  return Status();
}

void RankLoop::PublishStatus(int64_t steps) {
  const std::lock_guard lock(setup_.mailbox->mutex);
  setup_.mailbox->status = scheduler_->status();
  setup_.mailbox->steps = steps;
}

}  // namespace tandem
