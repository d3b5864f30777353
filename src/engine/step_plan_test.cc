#include "engine/step_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

namespace tandem {
namespace {

PlanSequence Window(int32_t start, int32_t rows, int32_t limit) {
  PlanSequence sequence;
  sequence.kind = RowKind::kWindow;
  sequence.start = start;
  sequence.num_rows = rows;
  sequence.prefill_end = 1;
  sequence.limit = limit;
  return sequence;
}

PlanSequence Chunk(int32_t start, int32_t rows, int32_t prompt_size, int32_t limit = 1000) {
  PlanSequence sequence;
  sequence.kind = RowKind::kChunk;
  sequence.start = start;
  sequence.num_rows = rows;
  sequence.prefill_end = prompt_size;
  sequence.limit = limit;
  return sequence;
}

StepPlan PlanOf(std::vector<PlanSequence> sequences) {
  StepPlan plan;
  plan.has_work = !sequences.empty();
  plan.sequences = std::move(sequences);
  return plan;
}

Layout MakeLayout(int tp, int dp) {
  return *Layout::Make(tp, dp);
}

// The records of all ranks, one plan per replica.
std::vector<StepRecord> RecordsOf(const std::vector<StepPlan>& plans, const Layout& layout, int k,
                                  int max_step_rows) {
  std::vector<StepRecord> records;
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    records.push_back(MakeRecord(plans[layout.replica(rank)], 7, k, max_step_rows, layout, rank));
  }
  return records;
}

TEST(StepPlan, SerializedPlanComesBackWhole) {
  StepPlan plan = PlanOf({Window(9, 3, 50), Chunk(16, 5, 40)});
  plan.stop = true;
  plan.doorbell = 0xfedcba98u;
  plan.sequences[0].request_id = ~uint64_t{0};
  plan.sequences[0].sampling = {0.8f, 7, 0.9f, 0.05f, 0x123456789abcdefull};
  plan.sequences[1].prompt_logprobs = 4;
  plan.tokens = {1, 2, 3, 4, 5};
  plan.blocks = {9, 8};
  const StepPlan copy = StepPlan::Deserialize(plan.Serialize());
  EXPECT_TRUE(copy.has_work);
  EXPECT_TRUE(copy.stop);
  EXPECT_EQ(copy.doorbell, plan.doorbell);
  EXPECT_EQ(copy.tokens, plan.tokens);
  EXPECT_EQ(copy.blocks, plan.blocks);
  ASSERT_EQ(copy.sequences.size(), 2u);
  EXPECT_EQ(copy.sequences[0].request_id, plan.sequences[0].request_id);
  EXPECT_EQ(copy.sequences[0].sampling.seed, plan.sequences[0].sampling.seed);
  EXPECT_EQ(copy.sequences[0].sampling.top_p, 0.9f);
  EXPECT_EQ(copy.sequences[0].num_rows, 3);
  EXPECT_TRUE(copy.sequences[1].is_chunk());
  EXPECT_EQ(copy.sequences[1].prompt_logprobs, 4);
  EXPECT_EQ(copy.Serialize(), plan.Serialize());
}

TEST(StepPlan, EmptyPlanSurvivesSerializing) {
  const StepPlan copy = StepPlan::Deserialize(StepPlan().Serialize());
  EXPECT_FALSE(copy.has_work);
  EXPECT_TRUE(copy.sequences.empty() && copy.tokens.empty() && copy.blocks.empty());
}

TEST(StepPlan, TruncateCutsChunksInOrderAndSparesWindows) {
  StepPlan plan = PlanOf({Window(9, 4, 50), Chunk(0, 10, 10), Chunk(5, 10, 15), Chunk(0, 3, 90)});
  EXPECT_EQ(plan.prompt_rows(), 23);
  plan.Truncate(14);
  ASSERT_EQ(plan.sequences.size(), 3u);  // the last chunk is gone
  EXPECT_EQ(plan.sequences[0].num_rows, 4);
  EXPECT_EQ(plan.sequences[1].num_rows, 10);
  EXPECT_EQ(plan.sequences[2].num_rows, 4);
  EXPECT_EQ(plan.prompt_rows(), 14);
  // What was final has become a middle chunk: it emits nothing and drafts nothing.
  EXPECT_TRUE(plan.sequences[1].is_final_chunk());
  EXPECT_FALSE(plan.sequences[2].is_final_chunk());
  EXPECT_EQ(plan.sequences[2].head_rows(), 0);
  EXPECT_EQ(plan.sequences[2].useful_drafts(3), 0);

  plan.Truncate(0);
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_FALSE(plan.sequences[0].is_chunk());
}

TEST(StepPlan, TruncateWithoutLimitChangesNothing) {
  StepPlan plan = PlanOf({Window(9, 4, 50), Chunk(0, 10, 10)});
  plan.Truncate(kNoPromptLimit);
  EXPECT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.prompt_rows(), 10);
}

TEST(StepPlan, HeadRowsFollowFromKindAndNotFromCounts) {
  // A prompt of exactly k + 1 tokens looks like a window and is none.
  EXPECT_EQ(Chunk(0, 4, 4).head_rows(), 1);
  EXPECT_EQ(Window(3, 4, 50).head_rows(), 4);
  EXPECT_EQ(Chunk(0, 4, 5).head_rows(), 0);
  PlanSequence logprobs = Chunk(0, 4, 9);
  logprobs.prompt_logprobs = 0;
  EXPECT_EQ(logprobs.head_rows(), 4);
}

// The step emits at least one token, so of limit - known tokens that may come, one is gone, and the
// window after it holds at most all but one of the rest.
TEST(StepPlan, UsefulDraftsAtEveryDistanceFromTheLimit) {
  for (int k = 0; k <= kMaxDraftTokens; ++k) {
    for (int remaining = 1; remaining <= 12; ++remaining) {
      const int expected = std::max(0, std::min(k, remaining - 2));
      EXPECT_EQ(Window(19, 1, 20 + remaining).useful_drafts(k), expected) << k << " " << remaining;
      EXPECT_EQ(Window(19, 1 + k, 20 + remaining).useful_drafts(k), expected);
      EXPECT_EQ(Chunk(15, 5, 20, 20 + remaining).useful_drafts(k), expected);
      EXPECT_EQ(Chunk(14, 5, 20, 20 + remaining).useful_drafts(k), 0);
    }
  }
}

StepPlan RandomPlan(std::mt19937& random) {
  std::vector<PlanSequence> sequences;
  for (int i = random() % 5; i > 0; --i) {
    sequences.push_back(Window(20, 1 + random() % 4, 21 + 1 + random() % 9));
  }
  for (int i = random() % 4; i > 0; --i) {
    const int32_t rows = 1 + random() % 20;
    PlanSequence chunk = Chunk(random() % 9, rows, 0, 1000);
    chunk.prefill_end = chunk.start + rows + (random() % 2 ? random() % 30 : 0);
    chunk.limit = chunk.prefill_end + 1 + random() % 5;
    chunk.prompt_logprobs = random() % 3 == 0 ? 0 : -1;
    sequences.push_back(chunk);
  }
  return PlanOf(std::move(sequences));
}

// Whatever the split, the ranks' parts are the whole, which is counted here one sequence after the
// other.
TEST(ShapeOf, PartsOfAllSplitsSumToTheWhole) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const StepPlan plan = RandomPlan(random);
    const int32_t cap = round % 3 == 0 ? kNoPromptLimit : static_cast<int32_t>(random() % 40);
    StepPlan cut = plan;
    cut.Truncate(cap);
    StepShape whole;
    for (const PlanSequence& s : cut.sequences) {
      whole.rows += s.num_rows;
      whole.rank_head_rows += s.head_rows();
      whole.draft_rows += s.useful_drafts(3) > 0;
      whole.k_draft = std::max(whole.k_draft, s.useful_drafts(3));
    }
    for (int attn_tp = 1; attn_tp <= 16; attn_tp *= 2) {
      int32_t head_rows = 0;
      for (int i = 0; i < attn_tp; ++i) {
        const StepShape shape = ShapeOf(plan, cap, 3, i, attn_tp);
        EXPECT_EQ(shape.rows, whole.rows);
        EXPECT_EQ(shape.draft_rows, whole.draft_rows);
        EXPECT_EQ(shape.k_draft, whole.k_draft);
        EXPECT_LE(shape.rank_head_rows, Share(shape.rows, i, attn_tp).size());
        head_rows += shape.rank_head_rows;
      }
      EXPECT_EQ(head_rows, whole.rank_head_rows) << "split by " << attn_tp;
    }
  }
}

TEST(Agree, PrefixSumsAreThePlansRows) {
  std::mt19937 random(6);
  for (const auto& [tp, dp] : {std::pair(4, 2), {4, 4}, {8, 2}, {16, 4}, {2, 1}}) {
    const Layout layout = MakeLayout(tp, dp);
    for (int round = 0; round < 60; ++round) {
      std::vector<StepPlan> plans;
      for (int r = 0; r < dp; ++r) plans.push_back(RandomPlan(random));
      const GroupPlan group = *Agree(RecordsOf(plans, layout, 3, 24), layout, 24);
      int32_t prompt_rows = 0;
      for (int r = 0; r < dp; ++r) {
        plans[r].Truncate(group.max_prompt_rows);
        prompt_rows += plans[r].prompt_rows();
        int32_t rows = 0, head = 0, drafts = 0;
        for (const PlanSequence& s : plans[r].sequences) {
          rows += s.num_rows;
          head += s.head_rows();
          drafts += s.useful_drafts(3) > 0;
        }
        const int first = layout.leader(r), last = first + layout.attn_tp_size();
        EXPECT_EQ(group.row_begin[last] - group.row_begin[first], rows);
        EXPECT_EQ(group.head_begin[last] - group.head_begin[first], head);
        EXPECT_EQ(group.draft_begin[last] - group.draft_begin[first], drafts);
      }
      EXPECT_EQ(group.prompt_rows, prompt_rows);
      if (group.mixed) {
        EXPECT_LE(prompt_rows, 24);
      }
    }
  }
}

TEST(Agree, PromptingReplicasShareTheCapWhileAnyoneDecodes) {
  const Layout layout = MakeLayout(8, 4);
  const StepPlan decoding = PlanOf({Window(9, 4, 50)});
  const StepPlan prompting = PlanOf({Chunk(0, 100, 200)});
  const StepPlan both = PlanOf({Window(9, 1, 50), Chunk(0, 100, 200)});
  const auto cap = [&](const std::vector<StepPlan>& plans) {
    return Agree(RecordsOf(plans, layout, 3, 50), layout, 50)->max_prompt_rows;
  };
  EXPECT_EQ(cap({decoding, prompting, {}, {}}), 50);
  EXPECT_EQ(cap({decoding, prompting, {}, prompting}), 25);
  EXPECT_EQ(cap({both, prompting, {}, prompting}), 16);  // 48 rows: never more than 50
  EXPECT_EQ(cap({both, both, both, both}), 12);
  EXPECT_EQ(cap({both, {}, {}, {}}), 50);
}

TEST(Agree, NoCapWhenNobodyDecodes) {
  const Layout layout = MakeLayout(2, 2);
  const StepPlan prompting = PlanOf({Chunk(0, 100, 200)});
  const GroupPlan group = *Agree(RecordsOf({prompting, prompting}, layout, 3, 50), layout, 50);
  EXPECT_FALSE(group.mixed);
  EXPECT_EQ(group.max_prompt_rows, kNoPromptLimit);
  EXPECT_EQ(group.prompt_rows, 200);
  EXPECT_EQ(group.row_begin[2], 200);
}

TEST(Agree, IdleReplicasHaveNoSay) {
  const Layout layout = MakeLayout(8, 4);
  const StepPlan busy = PlanOf({Window(9, 4, 50), Window(5, 1, 9)});
  for (int replica = 0; replica < 4; ++replica) {
    std::vector<StepPlan> plans(4);
    plans[replica] = busy;
    const GroupPlan group = *Agree(RecordsOf(plans, layout, 5, 50), layout, 50);
    EXPECT_TRUE(group.any_work);
    EXPECT_EQ(group.k_verify, 3);
    EXPECT_EQ(group.k_draft, 5);
    EXPECT_EQ(group.row_begin[8], 5);
    EXPECT_EQ(group.row_begin[layout.leader(replica)], 0);
  }
  const GroupPlan nobody = *Agree(RecordsOf(std::vector<StepPlan>(4), layout, 5, 50), layout, 50);
  EXPECT_FALSE(nobody.any_work);
  EXPECT_EQ(nobody.k_draft, 0);
  EXPECT_EQ(nobody.row_begin[8], 0);
}

TEST(Agree, WaitingRequestsAreWorkWithoutRows) {
  const Layout layout = MakeLayout(2, 2);
  std::vector<StepPlan> plans(2);
  plans[1].has_work = true;
  const GroupPlan group = *Agree(RecordsOf(plans, layout, 3, 50), layout, 50);
  EXPECT_TRUE(group.any_work);
  EXPECT_EQ(group.row_begin[2], 0);
}

TEST(Agree, SmallestDoorbellAndAnyStop) {
  const Layout layout = MakeLayout(4, 4);
  std::vector<StepPlan> plans(4);
  for (int i = 0; i < 4; ++i) plans[i].doorbell = 20 - (i == 2);
  GroupPlan group = *Agree(RecordsOf(plans, layout, 3, 50), layout, 50);
  EXPECT_EQ(group.doorbell, 19u);
  EXPECT_FALSE(group.stop);
  plans[3].stop = true;
  EXPECT_TRUE(Agree(RecordsOf(plans, layout, 3, 50), layout, 50)->stop);
}

TEST(Agree, UnequalCommitsNameTheRank) {
  const Layout layout = MakeLayout(8, 2);
  std::vector<StepRecord> records = RecordsOf(std::vector<StepPlan>(2), layout, 3, 50);
  for (int rank = 4; rank < 8; ++rank) records[rank].commit_hash = 99;  // replicas may differ
  EXPECT_TRUE(Agree(records, layout, 50).ok());
  records[6].commit_hash = 98;
  const Result<GroupPlan> group = Agree(records, layout, 50);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), StatusCode::kInternal);
  EXPECT_NE(group.status().message().find("rank 6 "), std::string::npos)
      << group.status().message();
  EXPECT_NE(group.status().message().find("rank 4 "), std::string::npos);
}

}  // namespace
}  // namespace tandem
