#include "engine/step_inputs.h"

#include <algorithm>

#include "engine/scheduler.h"

namespace tandem {

StepInputs::StepInputs(const RowLimits& limits, const Layout& layout, int rank,
                       int num_draft_tokens)
    : limits_(limits), layout_(layout), rank_(rank), num_draft_tokens_(num_draft_tokens) {
  for (Splits* splits : {&row_begin_, &head_begin_, &draft_begin_}) {
    splits->resize(layout.attn_tp_size() + 1);
  }
  for (Splits* splits : {&row_world_, &head_world_, &draft_world_}) {
    splits->resize(layout.tp_size() + 1);
  }
  tokens_.resize(limits.rows);
  next_tokens_.resize(limits.rows);
  rows_.resize(limits.rows);
  fill_rows_.resize(limits.rows);
  row_ids_.resize(limits.rows);
  fill_ids_.resize(limits.rows);
  head_rows_.resize(limits.head_rows);
  head_info_.resize(limits.head_rows);
  draft_tokens_.resize(limits.draft_rows);
  draft_state_rows_.resize(limits.draft_rows);
  draft_sequences_.resize(limits.draft_rows);
  draft_rows_.resize(static_cast<size_t>(limits.draft_rows) * num_draft_tokens);
  draft_ids_.resize(static_cast<size_t>(limits.draft_rows) * num_draft_tokens);
}

void StepInputs::FillSplits(const GroupPlan& group) {
  const int leader = layout_.leader(layout_.replica(rank_));
  const auto copy = [&](const std::array<int32_t, kMaxRanks + 1>& all, Splits& world, Splits& own) {
    std::copy_n(all.begin(), world.size(), world.begin());
    for (size_t i = 0; i < own.size(); ++i) own[i] = all[leader + i] - all[leader];
  };
  copy(group.row_begin, row_world_, row_begin_);
  copy(group.head_begin, head_world_, head_begin_);
  copy(group.draft_begin, draft_world_, draft_begin_);
}

void StepInputs::Fill(const StepPlan& plan, const GroupPlan& group) {
  plan_ = &plan;
  FillSplits(group);
  int32_t row = 0, head = 0;
  for (const PlanSequence& sequence : plan.sequences) AddSequence(sequence, plan, row, head);
  CHECK(row == row_begin_.back() && head == head_begin_.back());
}

std::span<const int32_t> StepInputs::MaskedAt(const PlanSequence& sequence,
                                              int32_t position) const {
  if (position >= sequence.min_end) return {};
  return {plan_->tokens.data() + sequence.stop_begin, static_cast<size_t>(sequence.num_stops)};
}

HeadRow StepInputs::draft_head_row(int64_t i, int pass) const {
  const PlanSequence& sequence = *draft_sequences_[i];
  HeadRow row;
  row.sampling = sequence.sampling;
  row.position = draft(pass).rows[i].position + 1;
  row.masked = MaskedAt(sequence, row.position);
  return row;
}

void StepInputs::AddSequence(const PlanSequence& sequence, const StepPlan& plan, int32_t& row,
                             int32_t& head) {
  const int32_t* table = plan.blocks.data() + sequence.block_begin;
  const int32_t first_head = sequence.num_rows - sequence.head_rows();
  for (int32_t i = 0; i < sequence.num_rows; ++i, ++row) {
    CHECK(row < limits_.rows);
    const int32_t position = sequence.start + i;
    tokens_[row] = plan.tokens[sequence.token_begin + i];
    rows_[row] = {table, position, true};
    row_ids_[row] = {sequence.request_id, position};
    if (i < first_head) continue;
    CHECK(head < limits_.head_rows);
    head_rows_[head] = row;
    HeadRow& info = head_info_[head++];
    const bool prompt_row = sequence.is_chunk() && position + 1 < sequence.known_end();
    info.sampling = sequence.sampling;
    info.position = position + 1;
    info.given = prompt_row ? plan.tokens[sequence.token_begin + i + 1] : -1;
    info.num_top = prompt_row ? sequence.prompt_logprobs : sequence.logprobs;
    info.masked = MaskedAt(sequence, position + 1);
  }
}

void StepInputs::Accept(const SampleResult* sampled) {
  int32_t row = 0, head = 0, draft = 0;
  for (const PlanSequence& sequence : plan_->sequences) {
    AcceptSequence(sequence, sampled, row, head, draft);
    row += sequence.num_rows;
    head += sequence.head_rows();
  }
  CHECK(draft == draft_begin_.back());
}

void StepInputs::AcceptSequence(const PlanSequence& sequence, const SampleResult* sampled,
                                int32_t row, int32_t head, int32_t& draft) {
  const int32_t* table = plan_->blocks.data() + sequence.block_begin;
  const int32_t* tokens = plan_->tokens.data() + sequence.token_begin;
  const int32_t last_row = sequence.num_rows - 1;
  const int32_t last_head = head + sequence.head_rows() - 1;
  // Rows 0..true_rows are followed by a token of the request; later ones held rejected drafts.
  int32_t true_row = last_row;
  if (!sequence.is_chunk()) {
    true_row = AcceptedDrafts({tokens, static_cast<size_t>(sequence.num_rows)}, sampled + head);
  }
  const int32_t sampled_head = sequence.is_chunk() ? last_head : head + true_row;
  for (int32_t i = 0; i < sequence.num_rows; ++i) {
    const int32_t position = sequence.start + i + 1;
    int32_t next = -1;
    if (!sequence.is_chunk()) {
      next = i <= true_row ? sampled[head + i].token : -1;
    } else {
      next = position < sequence.known_end() ? tokens[i + 1] : sampled[last_head].token;
    }
    // Slots from limit - 1 on are never needed and not reserved.
    const bool active = next >= 0 && position < sequence.limit - 1;
    next_tokens_[row + i] = active ? next : 0;
    fill_rows_[row + i] = {table, position, active};
    fill_ids_[row + i] = {sequence.request_id, position};
  }
  if (sequence.useful_drafts(num_draft_tokens_) == 0) return;
  SetDraft(sequence, draft++, sequence.start + true_row + 1, sampled[sampled_head].token,
           sampled_head);
}

// The chain of one sequence's draft rows, from the row of its newest token on.
void StepInputs::SetDraft(const PlanSequence& sequence, int32_t draft, int32_t position,
                          int32_t token, int32_t head) {
  CHECK(draft < limits_.draft_rows);
  const int leader = layout_.leader(layout_.replica(rank_));
  draft_tokens_[draft] = std::max(token, 0);
  draft_state_rows_[draft] = head_world_[leader] + head;
  draft_sequences_[draft] = &sequence;
  for (int pass = 0; pass < num_draft_tokens_; ++pass) {
    const size_t at = static_cast<size_t>(pass) * limits_.draft_rows + draft;
    const int32_t row = position + pass;
    draft_rows_[at] = {plan_->blocks.data() + sequence.block_begin, row,
                       token >= 0 && row < sequence.limit - 1};
    draft_ids_[at] = {sequence.request_id, row};
  }
}

}  // namespace tandem
