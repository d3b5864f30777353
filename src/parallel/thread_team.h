// A meeting point for threads of one process, and the team that executes one rank's programs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tandem {

// How a wait with a limit ended.
enum class Arrival {
  kMet,       // all came
  kTimedOut,  // this thread's limit passed first and broke the barrier: one thread at most
  kBroken,    // another thread broke the barrier
};

// Meets `count` threads, over and over. Waits by a bounded spin (if `spin`), then sleeps in the
// kernel. A count of 1 costs nothing.
//
// Invariants:
// 1. round_ changes only when a round completes (by 2) or when the barrier breaks (bit 0, never
//    cleared).
// 2. A thread reads round_ before it counts itself in arrived_, so its round cannot complete
//    unseen.
class Barrier {
 public:
  // REQUIRES: count >= 1.
  Barrier(int count, bool spin);

  // Returns when all `count` threads have called it, or when the barrier is broken. Memory written
  // before by any is visible to all after.
  void Wait();

  // The same with a limit. After anything but kMet the barrier is broken for good: no waiting or
  // later call returns kMet.
  Arrival WaitFor(double seconds);
  // Wakes all. Any thread may call it.
  void Break();
  // How many of the current round have arrived (for messages; racy by nature).
  int arrived() const { return arrived_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kBrokenBit = 1;

  // `seconds` is null for no limit.
  Arrival Meet(const double* seconds);
  Arrival Sleep(uint32_t round, const double* seconds);
  void WakeSleepers();

  const int count_;
  const bool spin_;
  // Apart from round_, so that arrivals do not disturb those who spin on it.
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

// `size` threads, the caller of Run being thread 0. Idle threads sleep in the kernel.
class ThreadTeam {
 public:
  // REQUIRES: size >= 1.
  ThreadTeam(int size, bool spin);
  // REQUIRES: no Run is in progress.
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Calls work(thread) on all threads, thread 0 on the caller, and returns when all are done. One
  // caller at a time.
  void Run(const std::function<void(int thread)>& work);
  // Meeting of all threads inside Run; all of them make equally many calls.
  Barrier& barrier() { return barrier_; }

 private:
  void Serve(int thread);

  // Also opens and closes every Run: all threads call it in one order.
  Barrier barrier_;
  const std::function<void(int)>* work_ = nullptr;  // null tells the threads to end
  std::vector<std::thread> threads_;
};

}  // namespace tandem
