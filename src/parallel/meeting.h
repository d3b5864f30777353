// Where the ranks of a group post, meet and compare their calls. Bytes; no rows or buffers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/failure.h"
#include "parallel/thread_team.h"

namespace tandem {

class Meeting;

// One collective as one rank calls it.
struct Call {
  CollectiveTag tag;
  char kind = 0;  // see CollectiveRecord
  uint64_t sequence = 0;
  uint64_t size_hash = 0;
};

// A call that other ranks read: after the meeting to compare it, and at any time to report on a
// late rank. The latter may see a mixture of two calls if the rank moves meanwhile, hence atomics;
// order comes from the barrier.
struct alignas(64) Post {
  const Meeting* meeting = nullptr;
  std::atomic<const char*> name{nullptr};
  std::atomic<int> index{0};
  std::atomic<char> kind{0};
  std::atomic<uint64_t> sequence{0};
  std::atomic<uint64_t> size_hash{0};

  void Set(const Call& call);
  Call Get() const;
};

// What a rank does in all of its groups together.
struct alignas(64) RankState {
  std::atomic<const Post*> last{nullptr};  // the collective called last; null before the first
  std::atomic<bool> inside{false};         // it has not returned yet
  bool traced = false;
  std::vector<CollectiveRecord> trace;  // touched by the rank's own thread only
};

// Invariants:
// 1. Posts and outboxes exist twice, chosen by the parity of the sequence number: a rank can write
//    those of collective s + 2 only after all have come to s + 1, and so have read those of s.
// 2. A rank whose collective failed writes nothing more: every later call ends at Begin.
class Meeting {
 public:
  // Ranks first_rank .. first_rank + size - 1 of the world, whose states are all of `states`.
  // `name` is for messages; empty for the world itself.
  Meeting(std::string name, int first_rank, int size, const WorldOptions& options,
          std::span<RankState> states, WorldFailure& failure);

  int size() const { return size_; }

  // Call order of one collective on each rank: Begin; Outbox if it sends; Meet; Inbox of peers.
  // `rank` counts within the group.

  // The world's failure, if any.
  Status Begin() const { return failure_.is_set() ? failure_.Get() : Status(); }
  // Memory for `bytes` bytes that peers read after the meeting. Grows to the largest message and
  // stays.
  std::byte* Outbox(int rank, uint64_t sequence, size_t bytes);
  // Errors: kInternal if the ranks' calls differ, kDeadlineExceeded naming the late ranks, or the
  // status of an abort.
  Status Meet(int rank, const Call& call);
  std::span<const std::byte> Inbox(int peer, uint64_t sequence) const;

  // CHECKs that all ranks' allocation `number` has equal `sizes`. Does not wait. At start only:
  // takes a lock.
  void AgreeOnAllocation(size_t number, const std::vector<size_t>& sizes);

 private:
  friend std::string Describe(const Post& post);

  struct alignas(64) Place {
    std::array<Post, 2> posts;
    std::array<std::vector<std::byte>, 2> outboxes;
    std::array<size_t, 2> outbox_bytes{};
  };

  bool AllAgree(const Call& call) const;
  Status MismatchReport(uint64_t sequence) const;
  Status LateReport(int rank, const Call& call) const;

  const std::string name_;
  const int first_rank_;
  const int size_;
  const double deadline_seconds_;
  const std::span<RankState> states_;
  WorldFailure& failure_;
  Barrier barrier_;
  std::unique_ptr<Place[]> places_;

  std::mutex allocation_mutex_;
  std::vector<std::vector<size_t>> allocations_;  // guarded by allocation_mutex_
};

}  // namespace tandem
