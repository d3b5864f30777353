#include "parallel/failure.h"

#include <utility>

namespace tandem {

Status WorldFailure::Get() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void WorldFailure::Set(Status status) {
  CHECK(!status.ok());
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = std::move(status);
    is_set_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  for (Barrier* barrier : barriers_) barrier->Break();
}

Status WorldFailure::Await() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !status_.ok(); });
  return status_;
}

}  // namespace tandem
