#include "engine/step_inputs.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

constexpr int kDrafts = 3;
constexpr RowLimits kLimits{64, 64, 8};

// One replica's plan and the inputs of one of its ranks, filled from it.
class Step {
 public:
  Step(StepPlan plan, int tp = 1, int rank = 0)
      : plan_(std::move(plan)),
        layout_(*Layout::Make(tp, 1)),
        inputs_(kLimits, layout_, rank, kDrafts) {
    std::vector<StepRecord> records;
    for (int r = 0; r < tp; ++r) {
      records.push_back(MakeRecord(plan_, 0, kDrafts, 1000, layout_, r));
    }
    inputs_.Fill(plan_, *Agree(records, layout_, 1000));
  }

  StepInputs& inputs() { return inputs_; }
  const StepPlan& plan() const { return plan_; }

  void Accept(const std::vector<int32_t>& tokens) {
    ASSERT_EQ(static_cast<int32_t>(tokens.size()), inputs_.num_head_rows());
    std::vector<SampleResult> sampled(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) sampled[i].token = tokens[i];
    inputs_.Accept(sampled.data());
  }

 private:
  const StepPlan plan_;
  const Layout layout_;
  StepInputs inputs_;
};

void AddSequence(StepPlan& plan, RowKind kind, int32_t start, std::vector<int32_t> tokens,
                 int32_t rows, int32_t prompt_size, int32_t limit) {
  PlanSequence s;
  s.request_id = 100 + plan.sequences.size();
  s.kind = kind;
  s.start = start;
  s.num_rows = rows;
  s.prefill_end = prompt_size;
  s.limit = limit;
  s.token_begin = static_cast<int32_t>(plan.tokens.size());
  s.block_begin = static_cast<int32_t>(plan.blocks.size());
  s.num_blocks = 1;
  plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
  plan.blocks.push_back(static_cast<int32_t>(plan.sequences.size()));
  plan.sequences.push_back(s);
}

void AddWindow(StepPlan& plan, int32_t start, std::vector<int32_t> tokens, int32_t limit = 1000) {
  const int32_t rows = static_cast<int32_t>(tokens.size());
  AddSequence(plan, RowKind::kWindow, start, std::move(tokens), rows, 1, limit);
}

// DESIGN 5: committed t_0..t_n, window n..n+3, two accepted. The fill writes slots n+1..n+3 from
// (h_n, t_n+1), (h_n+1, t_n+2), (h_n+2, t_n+3); the first draft row is n+3, chained ones follow
// from n+4.
TEST(StepInputs, WorkedExampleOfTheDesign) {
  constexpr int32_t n = 20;
  StepPlan plan;
  AddWindow(plan, n, {500, 501, 502, 777});
  Step step(plan);
  StepInputs& inputs = step.inputs();
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(inputs.target().rows[i].position, n + i);
    EXPECT_TRUE(inputs.target().rows[i].active);
    EXPECT_EQ(inputs.head().rows[i], i);
    EXPECT_EQ(inputs.head_row(i).position, n + i + 1);
    EXPECT_EQ(inputs.head_row(i).given, -1);
  }
  step.Accept({501, 502, 503, 999});
  const RowBatch fill = inputs.fill();
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(fill.rows[i].position, n + 1 + i);
    EXPECT_TRUE(fill.rows[i].active);
    EXPECT_EQ(inputs.next_tokens()[i], 501 + i);
  }
  EXPECT_FALSE(fill.rows[3].active);  // held a rejected draft
  EXPECT_EQ(inputs.num_draft_rows(), 1);
  EXPECT_EQ(inputs.draft_tokens()[0], 503);
  EXPECT_EQ(inputs.draft_state_rows()[0], 2);  // the state of row n+2
  for (int32_t pass = 1; pass <= kDrafts; ++pass) {
    EXPECT_EQ(inputs.draft(pass).rows[0].position, n + 2 + pass);
    EXPECT_TRUE(inputs.draft(pass).rows[0].active);
    EXPECT_EQ(inputs.draft(pass).identity[0].request_id, 100u);
  }
}

TEST(StepInputs, NothingAndEverythingAccepted) {
  StepPlan plan;
  AddWindow(plan, 20, {500, 501, 502, 503});
  AddWindow(plan, 30, {600, 601, 602, 603});
  Step step(plan);
  step.Accept({9, 1, 2, 3, 601, 602, 603, 604});
  const StepInputs& inputs = step.inputs();
  EXPECT_EQ(inputs.next_tokens()[0], 9);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(inputs.fill().rows[i].active, i == 0 || i >= 4) << i;
  EXPECT_EQ(inputs.draft(1).rows[0].position, 21);
  EXPECT_EQ(inputs.draft(1).rows[1].position, 34);
  EXPECT_EQ(inputs.draft_state_rows()[0], 0);
  EXPECT_EQ(inputs.draft_state_rows()[1], 7);
}

// A later draft that equals the target's token by chance counts for nothing once an earlier one was
// wrong.
TEST(StepInputs, AcceptanceStopsAtTheFirstDifference) {
  StepPlan plan;
  AddWindow(plan, 20, {500, 501, 502, 503});
  Step step(plan);
  step.Accept({9, 502, 503, 504});
  EXPECT_EQ(step.inputs().draft(1).rows[0].position, 21);
  EXPECT_FALSE(step.inputs().fill().rows[1].active);
}

TEST(StepInputs, RowsAtTheLimitAreMasked) {
  constexpr int32_t kLimit = 27;
  StepPlan plan;
  AddWindow(plan, 22, {1, 2, 3},
            kLimit);  // 23 known, at most 24 after the step: two drafts are of use
  Step step(plan);
  step.Accept({5, 0, 0});
  const StepInputs& inputs = step.inputs();
  ASSERT_EQ(inputs.num_draft_rows(), 1);
  EXPECT_TRUE(inputs.draft(1).rows[0].active);  // slot 23
  EXPECT_TRUE(inputs.draft(2).rows[0].active);  // 24
  EXPECT_TRUE(inputs.draft(3).rows[0].active);  // 25 = limit - 2
  step.Accept({2, 3, 4});
  EXPECT_TRUE(inputs.fill().rows[2].active);     // slot 25
  EXPECT_TRUE(inputs.draft(1).rows[0].active);   // 25
  EXPECT_FALSE(inputs.draft(2).rows[0].active);  // 26 = limit - 1
  EXPECT_FALSE(inputs.draft(3).rows[0].active);

  StepPlan last;
  AddWindow(last, 24, {1, 2}, kLimit);
  Step end(last);
  EXPECT_EQ(end.inputs().num_draft_rows(), 0);  // one token at most remains after it: no draft
  end.Accept({2, 3});
  EXPECT_TRUE(end.inputs().fill().rows[0].active);   // slot 25
  EXPECT_FALSE(end.inputs().fill().rows[1].active);  // slot 26
}

TEST(StepInputs, ChunksFillWithTheNextPromptToken) {
  StepPlan plan;
  AddSequence(plan, RowKind::kChunk, 4, {40, 41, 42, 43}, 3, 9, 100);  // middle
  AddSequence(plan, RowKind::kChunk, 7, {70, 71}, 2, 9, 100);          // final
  AddSequence(plan, RowKind::kChunk, 0, {80, 81, 82, 83}, 4, 4, 100);  // as long as a window
  Step step(plan);
  const StepInputs& inputs = step.inputs();
  ASSERT_EQ(inputs.num_head_rows(), 2);
  EXPECT_EQ(inputs.head().rows[0], 4);
  EXPECT_EQ(inputs.head_row(0).position, 9);
  EXPECT_EQ(inputs.head().rows[1], 8);
  step.Accept({79, 84});
  const std::vector<int32_t> next(inputs.next_tokens(), inputs.next_tokens() + 9);
  EXPECT_EQ(next, (std::vector<int32_t>{41, 42, 43, 71, 79, 81, 82, 83, 84}));
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(inputs.fill().rows[i].active) << i;
  EXPECT_EQ(inputs.fill().rows[2].position, 7);
  ASSERT_EQ(inputs.num_draft_rows(), 2);  // a middle chunk drafts nothing
  EXPECT_EQ(inputs.draft(1).rows[0].position, 9);
  EXPECT_EQ(inputs.draft(1).rows[1].position, 4);
  EXPECT_EQ(inputs.draft_state_rows()[0], 0);
  EXPECT_EQ(inputs.draft_state_rows()[1], 1);
}

TEST(StepInputs, PromptLogprobRowsAreGivenTheirTokens) {
  StepPlan plan;
  AddSequence(plan, RowKind::kChunk, 6, {60, 61, 62}, 3, 9, 100);
  plan.sequences[0].prompt_logprobs = 2;
  plan.sequences[0].logprobs = 5;
  Step step(plan);
  const StepInputs& inputs = step.inputs();
  ASSERT_EQ(inputs.num_head_rows(), 3);
  EXPECT_EQ(inputs.head_row(0).given, 61);
  EXPECT_EQ(inputs.head_row(1).given, 62);
  EXPECT_EQ(inputs.head_row(1).num_top, 2);
  EXPECT_EQ(inputs.head_row(2).given, -1);  // sampled
  EXPECT_EQ(inputs.head_row(2).num_top, 5);
}

// A row for which no token could be chosen ends its request; its rows must not touch the cache.
// A resumed sequence: rows 4..9 of tokens 0..10, of which the last is given and drafted from.
TEST(StepInputs, AResumedChunkIsGivenItsLastTokenAndDraftsFromIt) {
  StepPlan plan;
  AddSequence(plan, RowKind::kChunk, 4, {44, 45, 46, 47, 48, 49, 50}, 6, 10, 1000);
  plan.sequences[0].resumed = 1;
  EXPECT_FALSE(plan.sequences[0].emits());
  Step step(plan);
  StepInputs& inputs = step.inputs();
  ASSERT_EQ(inputs.num_head_rows(), 1);
  EXPECT_EQ(inputs.head().rows[0], 5);
  EXPECT_EQ(inputs.head_row(0).given, 50);
  EXPECT_EQ(inputs.head_row(0).num_top, -1);
  step.Accept({50});
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(inputs.fill().rows[i].position, 5 + i);
    EXPECT_TRUE(inputs.fill().rows[i].active);
    EXPECT_EQ(inputs.next_tokens()[i], 45 + i);
  }
  EXPECT_EQ(inputs.num_draft_rows(), 1);
  EXPECT_EQ(inputs.draft_tokens()[0], 50);
  EXPECT_EQ(inputs.draft_state_rows()[0], 0);
  EXPECT_EQ(inputs.draft(1).rows[0].position, 10);
}

TEST(StepInputs, StopTokensAreMaskedBeforeMinTokensOnEveryRowAndDraft) {
  StepPlan plan;
  AddWindow(plan, 20, {500, 501, 502, 503});
  PlanSequence& s = plan.sequences[0];
  s.min_end = 23;
  s.stop_begin = static_cast<int32_t>(plan.tokens.size());
  s.num_stops = 2;
  plan.tokens.insert(plan.tokens.end(), {7, 8});
  Step step(plan);
  for (int i = 0; i < 4; ++i) {  // choose positions 21..24
    EXPECT_EQ(step.inputs().head_row(i).masked.size(), i < 2 ? 2u : 0u) << i;
  }
  EXPECT_EQ(step.inputs().head_row(0).masked[1], 8);
  step.Accept({9, 1, 2, 3});  // drafts from row 21: positions 22, 23, 24
  for (int pass = 1; pass <= 3; ++pass) {
    const HeadRow row = step.inputs().draft_head_row(0, pass);
    EXPECT_EQ(row.position, 21 + pass);
    EXPECT_EQ(row.masked.size(), pass == 1 ? 2u : 0u);
    EXPECT_EQ(row.given, -1);
  }
}

TEST(StepInputs, NoTokenMasksFillAndDrafts) {
  StepPlan plan;
  AddWindow(plan, 20, {500, 501});
  Step step(plan);
  step.Accept({-1, 7});
  EXPECT_FALSE(step.inputs().fill().rows[0].active);
  EXPECT_FALSE(step.inputs().fill().rows[1].active);
  ASSERT_EQ(step.inputs().num_draft_rows(), 1);
  for (int pass = 1; pass <= kDrafts; ++pass) {
    EXPECT_FALSE(step.inputs().draft(pass).rows[0].active);
  }
}

// All ranks of a replica derive the same rows; their own parts are adjacent and complete.
TEST(StepInputs, RanksOfAReplicaAgree) {
  StepPlan plan;
  AddWindow(plan, 20, {500, 501, 502});
  AddSequence(plan, RowKind::kChunk, 4, {40, 41, 42, 43}, 3, 9, 100);
  AddSequence(plan, RowKind::kChunk, 0, {80, 81, 82, 83, 84}, 5, 5, 100);
  int64_t head = 0, drafts = 0;
  for (int rank = 0; rank < 4; ++rank) {
    Step step(plan, 4, rank);
    step.Accept({501, 3, 4, 85});
    const StepInputs& inputs = step.inputs();
    EXPECT_EQ(inputs.target().group_begin[4], 11);
    EXPECT_EQ(inputs.OwnHeadRows().begin, head);
    EXPECT_EQ(inputs.OwnDraftRows().begin, drafts);
    head = inputs.OwnHeadRows().end;
    drafts = inputs.OwnDraftRows().end;
    // A rank owns the head rows that lie among its own rows.
    for (int64_t i = inputs.OwnHeadRows().begin; i < head; ++i) {
      EXPECT_GE(inputs.head().rows[i], inputs.target().group_begin[rank]);
      EXPECT_LT(inputs.head().rows[i], inputs.target().group_begin[rank + 1]);
    }
    EXPECT_EQ(inputs.draft(1).rows[0].position, 22);
    EXPECT_EQ(inputs.draft(1).rows[1].position, 5);
    EXPECT_EQ(inputs.draft_state_rows()[0], 1);
    EXPECT_EQ(inputs.draft_state_rows()[1], 3);
  }
  EXPECT_EQ(head, 4);
  EXPECT_EQ(drafts, 2);
}

}  // namespace
}  // namespace tandem
