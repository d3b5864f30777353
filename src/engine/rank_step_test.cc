#include "engine/rank_step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "cache/kv_storage.h"
#include "engine/scheduler.h"
#include "model/config.h"
#include "ops/test_kernels.h"
#include "parallel/communicator.h"

namespace tandem {
namespace {

constexpr int kDrafts = 3;
constexpr int kBlockSize = 16;
constexpr int kNumBlocks = 64;
constexpr int kMaxNumSeqs = 4;
constexpr int kChunk = 24;
constexpr RowLimits kLimits{kMaxNumSeqs * (kDrafts + 1) + kChunk, 96, kMaxNumSeqs};

const ModelWeights& Weights() {
  static const std::unique_ptr<ModelWeights> weights = [] {
    const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/v3-odd-mtp";
    const ModelConfig config = *LoadModelConfig(folder);
    return std::move(*ModelWeights::Load(folder, config, *Layout::Make(1, 1),
                                         {.mtp = MtpUse::kRequire, .positions = 512}));
  }();
  return *weights;
}

// One rank with its scheduler, stepped by hand.
class Rank {
 public:
  // With `reuse`, one program per number of draft passes serves all steps.
  explicit Rank(bool reuse, const Kernels& kernels = KernelsFor(Isa::kAvx2),
                LatentFormat format = LatentFormat::kFp32)
      : reuse_(reuse),
        slot_bytes_(SlotBytes(format, Weights().config().kv_lora_rank,
                              Weights().config().qk_rope_head_dim)),
        world_(World::Make(1, 1, {})),
        kv_(Weights().num_layers(), kNumBlocks, kBlockSize, slot_bytes_),
        team_(2, false),
        inputs_(kLimits, Weights().layout(), 0, kDrafts),
        model_(Weights(), kernels, 0, kLimits, format, Caches(), world_->world(0),
               world_->group(0)),
        step_(model_, inputs_, kLimits, static_cast<int32_t>(Weights().config().vocab_size),
              kDrafts, 2, world_->group(0)),
        scheduler_({400, kBlockSize, kMaxNumSeqs, kChunk, kDrafts}, kNumBlocks) {}

  void Add(GenerationRequest request) {
    scheduler_.Add(std::move(request), [this](TokenEvent event) {
      auto& tokens = answers_[event.request_id];
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    });
  }

  struct Outcome {
    bool has_work = false;
    int k_draft = 0;
    std::string sampled, drafts;  // all bits
  };

  Outcome Step() {
    StepPlan plan = scheduler_.Propose(now_);
    const Layout& layout = Weights().layout();
    const StepRecord record = MakeRecord(plan, 0, kDrafts, 20, layout, 0);
    const GroupPlan group = *Agree({&record, 1}, layout, 20);
    if (!group.any_work) return {};
    plan.Truncate(group.max_prompt_rows);
    inputs_.Fill(plan, group);
    EXPECT_TRUE(ProgramFor(group.k_draft).Run(team_).ok());
    const size_t head_rows = inputs_.num_head_rows();
    const size_t drafts = static_cast<size_t>(inputs_.num_draft_rows()) * kMaxDraftTokens;
    scheduler_.Commit(plan, {{step_.sampled(), head_rows}, {step_.drafts(), drafts}}, now_++);
    Outcome outcome{true, group.k_draft, "", ""};
    outcome.sampled.assign(reinterpret_cast<const char*>(step_.sampled()),
                           head_rows * sizeof(SampleResult));
    for (int32_t i = 0; i < inputs_.num_draft_rows(); ++i) {
      outcome.drafts.append(reinterpret_cast<const char*>(step_.drafts() + i * kMaxDraftTokens),
                            group.k_draft * sizeof(int32_t));
    }
    return outcome;
  }

  size_t num_programs() const { return programs_.size(); }
  const std::map<uint64_t, std::vector<int32_t>>& answers() const { return answers_; }

 private:
  std::vector<LatentCache> Caches() {
    std::vector<LatentCache> caches;
    for (int64_t layer = 0; layer < Weights().num_layers(); ++layer) {
      caches.push_back({kv_.layer(layer), slot_bytes_, kBlockSize});
    }
    return caches;
  }

  const Program& ProgramFor(int k_draft) {
    if (!reuse_) programs_.clear();
    auto [it, added] = programs_.try_emplace(k_draft);
    if (added) step_.Record(it->second, k_draft);
    return it->second;
  }

  const bool reuse_;
  const int64_t slot_bytes_;
  std::unique_ptr<World> world_;
  KvStorage kv_;
  ThreadTeam team_;
  StepInputs inputs_;
  RankModel model_;
  RankStep step_;
  Scheduler scheduler_;
  std::map<int, Program> programs_;
  std::map<uint64_t, std::vector<int32_t>> answers_;
  int64_t now_ = 0;
};

// Chunks, windows, final rows and idle steps of changing sizes; prompts and stop places differ.
std::vector<GenerationRequest> Requests() {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 7; ++i) {
    GenerationRequest request;
    request.id = i;
    for (int t = 0; t < 3 + i * 9; ++t) request.prompt.push_back((t * 37 + i * 11) % 301);
    request.max_tokens = 3 + 5 * (i % 4);
    request.sampling.temperature = i % 2 ? 0.8f : 0.0f;
    request.sampling.seed = 99 + i;
    request.logprobs = 2;
    request.prompt_logprobs = i == 3 ? 1 : -1;
    request.arrival_step = i < 6 ? i * 2 : 60;  // the last one after an idle time
    requests.push_back(request);
  }
  return requests;
}

// Runs both to the end of the requests; counts the steps by their draft passes.
void ExpectEqualSteps(Rank& rank, Rank& reference, std::map<int, int>& uses) {
  for (const GenerationRequest& request : Requests()) {
    rank.Add(request);
    reference.Add(request);
  }
  while (true) {
    const Rank::Outcome expected = reference.Step();
    const Rank::Outcome outcome = rank.Step();
    ASSERT_EQ(outcome.has_work, expected.has_work);
    if (!expected.has_work) break;
    ++uses[outcome.k_draft];
    ASSERT_EQ(outcome.k_draft, expected.k_draft);
    ASSERT_EQ(outcome.sampled, expected.sampled);
    ASSERT_EQ(outcome.drafts, expected.drafts);
  }
  EXPECT_EQ(rank.answers(), reference.answers());
  EXPECT_EQ(rank.answers().size(), 7u);
}

// Whole steps, down to the log-probabilities' bits.
TEST(RankStep, EveryInstructionSetGivesTheSameBits) {
  for (const NamedKernels& set : AllKernels()) {
    SCOPED_TRACE(set.name);
    for (const LatentFormat format : {LatentFormat::kFp32, LatentFormat::kFp8}) {
      Rank rank(false, *set.kernels, format), reference(false, KernelsFor(Isa::kAvx2), format);
      std::map<int, int> uses;
      ExpectEqualSteps(rank, reference, uses);
    }
  }
}

TEST(RankStep, OneProgramRunAgainGivesTheBitsOfFreshOnes) {
  Rank fresh(false), reusing(true);
  std::map<int, int> uses;
  ExpectEqualSteps(reusing, fresh, uses);
  // Few programs, used often: with all drafts, with none, and with what limits leave.
  EXPECT_EQ(reusing.num_programs(), uses.size());
  EXPECT_GT(uses[kDrafts], 10);
  EXPECT_GT(uses[0], 10);
}

TEST(RankStep, OperationsDependOnTheDraftPassesAlone) {
  const std::unique_ptr<World> world = World::Make(1, 1, {});
  StepInputs inputs(kLimits, Weights().layout(), 0, kDrafts);
  RankModel model(Weights(), KernelsFor(BestIsa()), 0, kLimits, LatentFormat::kFp32,
                  std::vector<LatentCache>(Weights().num_layers()), world->world(0),
                  world->group(0));
  RankStep step(model, inputs, kLimits, 301, kDrafts, 1, world->group(0));
  std::vector<size_t> operations;
  for (int k_draft = 0; k_draft <= kDrafts; ++k_draft) {
    Program first, second;
    step.Record(first, k_draft);
    step.Record(second, k_draft);
    EXPECT_EQ(first.num_operations(), second.num_operations());
    EXPECT_EQ(first.num_collectives(), second.num_collectives());
    operations.push_back(first.num_operations());
  }
  EXPECT_GT(operations[1], operations[0]);
  EXPECT_EQ(operations[3] - operations[2], operations[2] - operations[1]);
}

}  // namespace
}  // namespace tandem
