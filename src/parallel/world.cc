#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "parallel/communicator.h"
#include "parallel/failure.h"
#include "parallel/group_communicator.h"
#include "parallel/meeting.h"

namespace tandem {
namespace {

class InProcessWorld final : public World {
 public:
  InProcessWorld(int tp_size, int attn_tp_size, const WorldOptions& options)
      : options_(options), states_(tp_size) {
    for (RankState& state : states_) state.traced = options.trace;
    AddGroup("", 0, tp_size, world_);
    for (int first = 0; first < tp_size; first += attn_tp_size) {
      AddGroup(fmt::format("replica {}", first / attn_tp_size), first, attn_tp_size, groups_);
    }
  }

  Communicator& world(int rank) override { return *world_[rank]; }
  Communicator& group(int rank) override { return *groups_[rank]; }
  void Abort(Status status) override { failure_.Set(std::move(status)); }
  Status failure() const override { return failure_.Get(); }
  std::vector<CollectiveRecord> TakeTrace(int rank) override {
    return std::exchange(states_[rank].trace, {});
  }

 private:
  void AddGroup(std::string name, int first_rank, int size,
                std::vector<std::unique_ptr<Communicator>>& communicators) {
    meetings_.push_back(
        std::make_unique<Meeting>(std::move(name), first_rank, size, options_, states_, failure_));
    auto made = options_.copying ? MakeCopyingCommunicators(*meetings_.back())
                                 : MakeInPlaceCommunicators(*meetings_.back());
    for (auto& communicator : made) communicators.push_back(std::move(communicator));
  }

  const WorldOptions options_;
  WorldFailure failure_;
  std::vector<RankState> states_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
  std::vector<std::unique_ptr<Communicator>> world_;   // by rank
  std::vector<std::unique_ptr<Communicator>> groups_;  // by rank
};

}  // namespace

std::unique_ptr<World> World::Make(int tp_size, int attn_tp_size, const WorldOptions& options) {
  CHECK(tp_size >= 1 && attn_tp_size >= 1 && tp_size % attn_tp_size == 0);
  return std::make_unique<InProcessWorld>(tp_size, attn_tp_size, options);
}

}  // namespace tandem
