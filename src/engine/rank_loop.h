// The life of one rank: plan, agree, run, commit, sleep, over and over, on the rank's own thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/kv_storage.h"
#include "engine/engine.h"
#include "engine/rank_step.h"
#include "engine/scheduler.h"

namespace tandem {

// What all ranks of one engine share, apart from weights and communicators.
struct EngineShared {
  std::atomic<uint32_t> doorbell = 0;  // counts reasons to wake
  std::atomic<bool> stop = false;
};

// What one replica's leader and the engine's callers share.
struct ReplicaMailbox {
  // In the order in which they came: an id may be used again as soon as its request has ended.
  struct Message {
    GenerationRequest request;
    EventSink sink;  // empty: cancel request.id
  };

  mutable std::mutex mutex;
  std::vector<Message> messages;
  ReplicaStatus status;  // copy from after the last step
  int64_t steps = 0;
};

struct RankSetup {
  int rank = 0;
  const ModelWeights* weights = nullptr;
  EngineOptions options;  // all defaults resolved
  RowLimits limits;
  int32_t num_blocks = 0;
  int num_threads = 1;
  bool spin = false;
  World* world = nullptr;
  KvStorage* kv = nullptr;
  EngineShared* shared = nullptr;
  ReplicaMailbox* mailbox = nullptr;  // the replica's; used by its leader
  // Called with the reason before a failed leader looks into its mailbox for the last time.
  std::function<void(const Status&)> on_failure;
};

class RankLoop {
 public:
  // Collective: every rank constructs its own, on its own thread.
  explicit RankLoop(const RankSetup& setup);

  // Steps until the engine stops (ok) or a collective fails. The leader has then ended all its
  // requests.
  Status Run();

 private:
  void TouchCache();
  Status RunSteps();
  StepPlan Propose();
  void DrainMailbox();
  Status Step(StepPlan plan, const GroupPlan& group);
  void PublishStatus(int64_t steps);

  const RankSetup setup_;
  const Layout layout_;
  const bool leader_;
  Communicator& world_;
  Communicator& group_;
  ThreadTeam team_;
  StepInputs inputs_;
  std::unique_ptr<RankModel> model_;
  std::unique_ptr<RankStep> rank_step_;
  std::optional<Scheduler> scheduler_;  // leaders only
  int64_t step_ = 0;
  uint64_t commit_hash_ = 0;
};

}  // namespace tandem
