#include "engine/rank_loop.h"

#include <gtest/gtest.h>

#include <thread>

#include "model/config.h"

namespace tandem {
namespace {

// The communicator of a rank whose copy of the sampled tokens is damaged once, as by a fault of its
// memory.
class DamagedCommunicator : public Communicator {
 public:
  DamagedCommunicator(Communicator& inner, int after) : inner_(inner), after_(after) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool shares_memory() const override { return inner_.shares_memory(); }
  std::unique_ptr<SymmetricBuffer> AllocateGathered(size_t bytes) override {
    return inner_.AllocateGathered(bytes);
  }
  std::unique_ptr<PieceBuffer> AllocatePieces(std::span<const size_t> max_piece_bytes,
                                              int64_t max_own_rows,
                                              std::span<const size_t> max_row_bytes) override {
    return inner_.AllocatePieces(max_piece_bytes, max_own_rows, max_row_bytes);
  }
  Status GatherRows(CollectiveTag tag, SymmetricBuffer& buffer, size_t row_bytes,
                    const int32_t* row_begin) override {
    RETURN_IF_ERROR(inner_.GatherRows(tag, buffer, row_bytes, row_begin));
    const bool sampled = std::string(tag.name) == "sampled" && row_begin[inner_.size()] > 0;
    if (sampled && --after_ == 0) reinterpret_cast<SampleResult*>(buffer.local())->token ^= 1;
    return Status();
  }
  Status CollectRows(CollectiveTag tag, PieceBuffer& pieces, std::span<const size_t> row_bytes,
                     const int32_t* row_begin) override {
    return inner_.CollectRows(tag, pieces, row_bytes, row_begin);
  }
  Status AllGather(CollectiveTag tag, const void* record, size_t record_bytes, void* all) override {
    return inner_.AllGather(tag, record, record_bytes, all);
  }
  Status Broadcast(CollectiveTag tag, int root, std::vector<std::byte>& message) override {
    return inner_.Broadcast(tag, root, message);
  }

  bool has_struck() const { return after_ <= 0; }

 private:
  Communicator& inner_;
  int after_;
};

class DamagedWorld : public World {
 public:
  DamagedWorld(std::unique_ptr<World> inner, int rank, int after)
      : inner_(std::move(inner)), rank_(rank), damaged_(inner_->group(rank), after) {}

  Communicator& world(int rank) override { return inner_->world(rank); }
  Communicator& group(int rank) override {
    return rank == rank_ ? static_cast<Communicator&>(damaged_) : inner_->group(rank);
  }
  void Abort(Status status) override { inner_->Abort(std::move(status)); }
  Status failure() const override { return inner_->failure(); }
  std::vector<CollectiveRecord> TakeTrace(int rank) override { return inner_->TakeTrace(rank); }
  bool has_struck() const { return damaged_.has_struck(); }

 private:
  const std::unique_ptr<World> inner_;
  const int rank_;
  DamagedCommunicator damaged_;
};

constexpr int kRanks = 4;
constexpr int kReplicas = 2;
constexpr int kNumBlocks = 16;

EngineOptions Options() {
  EngineOptions options;
  options.tp_size = kRanks;
  options.dp_size = kReplicas;
  options.num_draft_tokens = 3;
  options.max_num_seqs = 2;
  options.chunked_prefill_size = 16;
  options.max_step_rows = 16;
  options.context_length = 100;
  options.kv_format = LatentFormat::kFp32;
  options.isa = BestIsa();
  options.copying_communicator = true;
  return options;
}

// One long request per replica on a world of loops; returns what each rank's loop ended with.
std::vector<Status> RunLoops(World& world, std::vector<TokenEvent>& last) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/v3-odd-mtp";
  const ModelConfig config = *LoadModelConfig(folder);
  const Layout layout = *Layout::Make(kRanks, kReplicas);
  const auto weights =
      *ModelWeights::Load(folder, config, layout, {.mtp = MtpUse::kRequire, .positions = 100});
  EngineShared shared;
  std::vector<ReplicaMailbox> mailboxes(kReplicas);
  last.resize(kReplicas);
  for (int r = 0; r < kReplicas; ++r) {
    GenerationRequest request;
    request.id = r;
    request.prompt = {5, 6, 7};
    request.max_tokens = 90;
    request.sampling.temperature = 0;
    mailboxes[r].messages.push_back({request, [&last, r](TokenEvent e) { last[r] = e; }});
  }
  std::vector<Status> statuses(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const int64_t slot_bytes = (config.kv_lora_rank + config.qk_rope_head_dim) * 4;
      KvStorage kv(weights->num_layers(), kNumBlocks, 16, slot_bytes);
      RankSetup setup;
      setup.rank = rank;
      setup.weights = weights.get();
      setup.options = Options();
      setup.limits = {2 * 4 + 16, 2 * 4 + kMaxPromptLogprobRows, 2};
      setup.num_blocks = kNumBlocks;
      setup.world = &world;
      setup.kv = &kv;
      setup.shared = &shared;
      setup.mailbox = &mailboxes[layout.replica(rank)];
      setup.on_failure = [](const Status&) {};
      statuses[rank] = RankLoop(setup).Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

TEST(RankLoop, ARankThatDecidesOtherwiseIsNamedAndNobodyHangs) {
  for (const int rank : {1, 2, 3}) {  // followers and the second replica's leader
    DamagedWorld world(World::Make(kRanks, kRanks / kReplicas, {.copying = true, .spin = false}),
                       rank, 5);
    std::vector<TokenEvent> last;
    const std::vector<Status> statuses = RunLoops(world, last);
    EXPECT_TRUE(world.has_struck());
    const std::string& message = statuses[0].message();
    EXPECT_NE(message.find("rank " + std::to_string(rank)), std::string::npos) << message;
    EXPECT_NE(message.find("committed"), std::string::npos) << message;
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      EXPECT_EQ(status.message(), message);
    }
    for (const TokenEvent& event : last) {
      EXPECT_EQ(event.finish_reason, FinishReason::kError);
      EXPECT_EQ(event.error, message);
    }
  }
}

}  // namespace
}  // namespace tandem
