// The program of one step on one rank: target, sampling, acceptance, fill and draft passes,
// recorded over StepInputs. Runs on busy and idle ranks alike.
#pragma once

#include "engine/step_inputs.h"
#include "model/rank_model.h"

namespace tandem {

class RankStep {
 public:
  // Collective: allocates what is published within the replica.
  RankStep(RankModel& model, StepInputs& inputs, const RowLimits& limits, int32_t vocab_size,
           int num_draft_tokens, int num_threads, Communicator& group);

  // Records a step with `k_draft` draft passes. With an engine started for speculation every step
  // fills.
  void Record(Program& program, int k_draft);

  // Valid after the program has run, on every rank of the replica.
  const SampleResult* sampled() const {
    return reinterpret_cast<const SampleResult*>(sampled_->local());
  }
  const int32_t* drafts() const { return reinterpret_cast<const int32_t*>(drafts_->local()); }
  // A hash of everything that the last step has decided for the replica.
  uint64_t CommitHash(uint64_t previous) const;

 private:
  void RecordSampling(Program& program);
  void RecordDraftSampling(Program& program, int pass);
  Program::Trace TraceLogits(const RowBatch& batch, const HeadBatch& head);

  RankModel& model_;
  StepInputs& inputs_;
  const int32_t vocab_size_;
  const int num_draft_tokens_;
  const int attn_rank_;
  Communicator& group_;
  std::vector<Buffer<float>> logits_;  // [thread][vocab_size]
  std::unique_ptr<SymmetricBuffer> sampled_, drafts_;
};

}  // namespace tandem
