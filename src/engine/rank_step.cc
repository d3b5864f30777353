#include "engine/rank_step.h"

#include <algorithm>
#include <limits>

#include "base/hash.h"

namespace tandem {

RankStep::RankStep(RankModel& model, StepInputs& inputs, const RowLimits& limits,
                   int32_t vocab_size, int num_draft_tokens, int num_threads, Communicator& group)
    : model_(model),
      inputs_(inputs),
      vocab_size_(vocab_size),
      num_draft_tokens_(num_draft_tokens),
      attn_rank_(group.rank()),
      group_(group),
      sampled_(group.AllocateGathered(limits.head_rows * sizeof(SampleResult))),
      drafts_(group.AllocateGathered(limits.draft_rows * kMaxDraftTokens * sizeof(int32_t))) {
  for (int t = 0; t < num_threads; ++t) logits_.emplace_back(vocab_size);
}

namespace {

// The row's token, and its log-probabilities from the raw logits. Changes `logits` for a moment.
SampleResult Sample(std::span<float> logits, const HeadRow& row) {
  std::vector<float> raw;
  for (const int32_t token : row.masked) {
    raw.push_back(logits[token]);
    logits[token] = -std::numeric_limits<float>::infinity();
  }
  SampleResult result = {};
  result.token = row.given >= 0 ? row.given : SampleToken(logits, row.sampling, row.position);
  // Backwards: a token that is masked twice was saved raw the first time.
  for (size_t i = raw.size(); i-- > 0;) logits[row.masked[i]] = raw[i];
  if (result.token >= 0 && row.num_top >= 0) {
    FillLogprobs(logits, result.token, row.num_top, result);
  }
  return result;
}

}  // namespace

Program::Trace RankStep::TraceLogits(const RowBatch& batch, const HeadBatch& head) {
  return [=, this](RowTracer& tracer, const OpTag& op) {
    const int32_t begin = head.group_begin[attn_rank_], end = head.group_begin[attn_rank_ + 1];
    for (int32_t i = begin; i < end; ++i) {
      const int32_t row = head.rows != nullptr ? head.rows[i] : i;
      if (!batch.rows[row].active) continue;
      model_.ReadLogits(i - begin, logits_[0].data());
      tracer.Row(op, batch.identity[row].request_id, batch.identity[row].position, 0,
                 logits_[0].data(), logits_[0].bytes());
    }
  };
}

void RankStep::RecordSampling(Program& program) {
  program.Add(
      {"sample", -1, 0},
      [this](const Worker& worker) {
        SampleResult* results = reinterpret_cast<SampleResult*>(sampled_->local());
        const std::span<float> logits = logits_[worker.thread].span();
        const Range own = inputs_.OwnHeadRows();
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          model_.ReadLogits(i, logits.data());
          results[own.begin + i] = Sample(logits, inputs_.head_row(own.begin + i));
        }
      },
      TraceLogits(inputs_.target(), inputs_.head()));
  program.AddCollective({"gather_sampled"}, [this] {
    return group_.GatherRows({"sampled"}, *sampled_, sizeof(SampleResult),
                             inputs_.head().group_begin);
  });
  program.Add({"accept"}, [this](const Worker& worker) {
    if (worker.thread == 0) inputs_.Accept(sampled());
  });
}

void RankStep::RecordDraftSampling(Program& program, int pass) {
  const RowBatch batch = inputs_.draft(pass);
  program.Add(
      {"sample_draft", -1, pass},
      [=, this](const Worker& worker) {
        int32_t* drafts = reinterpret_cast<int32_t*>(drafts_->local());
        const std::span<float> logits = logits_[worker.thread].span();
        const Range own = inputs_.OwnDraftRows();
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          const int64_t row = own.begin + i;
          int32_t token = -1;
          if (batch.rows[row].active) {
            model_.ReadLogits(i, logits.data());
            token = Sample(logits, inputs_.draft_head_row(row, pass)).token;
          }
          drafts[row * kMaxDraftTokens + pass - 1] = token;
          inputs_.draft_tokens()[row] = std::max(token, 0);
        }
      },
      TraceLogits(batch, inputs_.draft_head()));
}

void RankStep::Record(Program& program, int k_draft) {
  model_.RecordTarget(program, inputs_.target(), inputs_.tokens());
  model_.RecordHead(program, 0, inputs_.target(), inputs_.head());
  RecordSampling(program);
  if (num_draft_tokens_ == 0) return;
  model_.RecordFill(program, inputs_.fill(), inputs_.next_tokens());
  for (int pass = 1; pass <= k_draft; ++pass) {
    model_.RecordDraft(program, pass, inputs_.draft(pass), inputs_.draft_tokens(),
                       inputs_.draft_state_rows());
    model_.RecordHead(program, pass, inputs_.draft(pass), inputs_.draft_head());
    RecordDraftSampling(program, pass);
  }
  if (k_draft == 0) return;
  program.AddCollective({"gather_drafts"}, [this] {
    return group_.GatherRows({"drafts"}, *drafts_, kMaxDraftTokens * sizeof(int32_t),
                             inputs_.draft(1).group_begin);
  });
}

uint64_t RankStep::CommitHash(uint64_t previous) const {
  uint64_t hash = previous;
  for (int32_t i = 0; i < inputs_.num_head_rows(); ++i) {
    hash = HashCombine(hash, static_cast<uint32_t>(sampled()[i].token));
  }
  const size_t drafts = static_cast<size_t>(inputs_.num_draft_rows()) * kMaxDraftTokens;
  return HashBytes(this->drafts(), drafts * sizeof(int32_t), hash);
}

}  // namespace tandem
