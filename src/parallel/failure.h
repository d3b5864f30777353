// The status that ended a world, told to all of its ranks at once. Knows barriers, not collectives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "parallel/thread_team.h"

namespace tandem {

// Thread-safe. Once set, never changes.
class WorldFailure {
 public:
  // `barrier` is broken when the failure is set; it must outlive all calls of Set. Not while ranks
  // run.
  void Watch(Barrier* barrier) { barriers_.push_back(barrier); }

  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  // Ok if not set.
  Status Get() const;
  // The first call wins, and breaks all barriers. REQUIRES: !status.ok().
  void Set(Status status);
  // Get() once it is set: a thread that finds a barrier broken may be ahead of the one that will
  // say why.
  Status Await() const;

 private:
  std::vector<Barrier*> barriers_;
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Status status_;  // guarded by mutex_
};

}  // namespace tandem
