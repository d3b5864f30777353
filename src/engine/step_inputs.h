// The buffers of one rank that a step's program reads: row lists, splits and tables, refilled for
// every step, and what acceptance derives from the sampled tokens inside a step. No kernels and no
// scheduling.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sampler.h"
#include "engine/step_plan.h"
#include "model/rank_model.h"

namespace tandem {

// A row whose logits are wanted.
struct HeadRow {
  SamplingParams sampling;
  int32_t position = 0;  // of the token that the row chooses
  int32_t given = -1;    // a prompt token whose log-probability is wanted; -1: sample
  int32_t num_top = -1;  // log-probabilities: -1 none, else the token's and the best num_top
  std::span<const int32_t> masked;  // tokens that may not be chosen
};

class StepInputs {
 public:
  StepInputs(const RowLimits& limits, const Layout& layout, int rank, int num_draft_tokens);

  // Fills everything known before the step. REQUIRES: `plan` is truncated as `group` says, and
  // stays alive and unchanged to the end of the step (its block tables are read in place).
  void Fill(const StepPlan& plan, const GroupPlan& group);

  // Fills what follows from the sampled tokens, `sampled[i]` of head row i: next tokens and rows of
  // the fill, first draft rows. The same on every rank of the replica.
  void Accept(const SampleResult* sampled);

  RowBatch target() const { return Batch(row_begin_, row_world_, rows_, row_ids_); }
  RowBatch fill() const { return Batch(row_begin_, row_world_, fill_rows_, fill_ids_); }
  RowBatch draft(int pass) const {
    const size_t at = static_cast<size_t>(pass - 1) * limits_.draft_rows;
    return {draft_begin_.data(), draft_world_.data(), draft_rows_.data() + at,
            draft_ids_.data() + at};
  }
  HeadBatch head() const { return {head_begin_.data(), head_world_.data(), head_rows_.data()}; }
  HeadBatch draft_head() const { return {draft_begin_.data(), draft_world_.data(), nullptr}; }

  const int32_t* tokens() const { return tokens_.data(); }
  const int32_t* next_tokens() const { return next_tokens_.data(); }
  int32_t* draft_tokens() { return draft_tokens_.data(); }
  const int32_t* draft_state_rows() const { return draft_state_rows_.data(); }
  const HeadRow& head_row(int64_t i) const { return head_info_[i]; }
  // The sampling of draft row i in pass `pass`, as a HeadRow without log-probabilities.
  HeadRow draft_head_row(int64_t i, int pass) const;

  int32_t num_head_rows() const { return head_begin_[layout_.attn_tp_size()]; }
  int32_t num_draft_rows() const { return draft_begin_[layout_.attn_tp_size()]; }
  Range OwnHeadRows() const { return Own(head_begin_); }
  Range OwnDraftRows() const { return Own(draft_begin_); }

 private:
  using Splits = std::vector<int32_t>;

  Range Own(const Splits& begin) const {
    return {begin[layout_.attn_rank(rank_)], begin[layout_.attn_rank(rank_) + 1]};
  }
  static RowBatch Batch(const Splits& group, const Splits& world,
                        const std::vector<AttentionRow>& rows,
                        const std::vector<RowIdentity>& ids) {
    return {group.data(), world.data(), rows.data(), ids.data()};
  }
  void FillSplits(const GroupPlan& group);
  // Of the token at `position` (min_tokens).
  std::span<const int32_t> MaskedAt(const PlanSequence& sequence, int32_t position) const;
  void AddSequence(const PlanSequence& sequence, const StepPlan& plan, int32_t& row, int32_t& head);
  void AcceptSequence(const PlanSequence& sequence, const SampleResult* sampled, int32_t row,
                      int32_t head, int32_t& draft);
  void SetDraft(const PlanSequence& sequence, int32_t draft, int32_t position, int32_t token,
                int32_t head);

  const RowLimits limits_;
  const Layout layout_;
  const int rank_;
  const int num_draft_tokens_;
  const StepPlan* plan_ = nullptr;

  Splits row_begin_, row_world_, head_begin_, head_world_, draft_begin_, draft_world_;
  std::vector<int32_t> tokens_, next_tokens_, head_rows_, draft_tokens_, draft_state_rows_;
  std::vector<AttentionRow> rows_, fill_rows_, draft_rows_;  // draft: [pass][row]
  std::vector<RowIdentity> row_ids_, fill_ids_, draft_ids_;
  std::vector<HeadRow> head_info_;
  std::vector<const PlanSequence*> draft_sequences_;
};

}  // namespace tandem
