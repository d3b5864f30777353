#include "parallel/thread_team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/check.h"

namespace tandem {
namespace {

// Spinning for as long as going to sleep and being woken costs is never worse than twice the better
// choice. That cost is 5 us (the core still awake) to 50 us (idle core, virtual machine); one pause
// is 20 to 50 ns on servers since 2017. 1000 pauses are thus 20 to 50 us.
constexpr int kSpins = 1000;

// Longer limits mean none; keeps the sum of seconds in range.
constexpr double kMaxSeconds = 1e9;

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "the kernel reads the atomic as a plain word");

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

timespec DeadlineAfter(double seconds) {
  seconds = std::clamp(seconds, 0.0, kMaxSeconds);
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const time_t whole = static_cast<time_t>(seconds);
  time.tv_sec += whole;
  time.tv_nsec += static_cast<long>((seconds - static_cast<double>(whole)) * 1e9);
  if (time.tv_nsec >= 1'000'000'000) {
    time.tv_nsec -= 1'000'000'000;
    ++time.tv_sec;
  }
  return time;
}

// Sleeps while `word` is `value`, until `deadline` (null: no limit). May return early. False: the
// deadline passed.
bool FutexWait(std::atomic<uint32_t>& word, uint32_t value, const timespec* deadline) {
  // The bitset form takes an absolute time, so early returns do not prolong the limit.
  const long result =
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, value,
              deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
  return !(result == -1 && errno == ETIMEDOUT);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace

Barrier::Barrier(int count, bool spin) : count_(count), spin_(spin) {
  CHECK(count >= 1);
}

void Barrier::Wait() {
  Meet(nullptr);
}

Arrival Barrier::WaitFor(double seconds) {
  return Meet(&seconds);
}

void Barrier::Break() {
  round_.fetch_or(kBrokenBit);
  WakeSleepers();
}

Arrival Barrier::Meet(const double* seconds) {
  const uint32_t round = round_.load(std::memory_order_acquire);
  if (round & kBrokenBit) return Arrival::kBroken;
  if (count_ == 1) return Arrival::kMet;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    const uint32_t before = round_.fetch_add(2);
    WakeSleepers();
    return before & kBrokenBit ? Arrival::kBroken : Arrival::kMet;
  }
  for (int i = 0; spin_ && i < kSpins; ++i) {
    const uint32_t now = round_.load(std::memory_order_acquire);
    if (now != round) return now & kBrokenBit ? Arrival::kBroken : Arrival::kMet;
    CpuRelax();
  }
  return Sleep(round, seconds);
}

Arrival Barrier::Sleep(uint32_t round, const double* seconds) {
  // The clock is read only here: a meeting that succeeds by spinning does not pay for it.
  timespec deadline;
  if (seconds != nullptr) deadline = DeadlineAfter(*seconds);
  // Sequentially consistent, as are the changes of round_: either the waker sees this sleeper, or
  // the sleeper (here or in the kernel) sees the new round.
  sleepers_.fetch_add(1);
  Arrival arrival = Arrival::kMet;
  while (true) {
    uint32_t now = round_.load();
    if (now != round) {
      arrival = now & kBrokenBit ? Arrival::kBroken : Arrival::kMet;
      break;
    }
    if (FutexWait(round_, round, seconds != nullptr ? &deadline : nullptr)) continue;
    // Exchanged, not set: the round may have completed, or another broken it, since.
    if (round_.compare_exchange_strong(now, round | kBrokenBit)) {
      arrival = Arrival::kTimedOut;
      break;
    }
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  if (arrival == Arrival::kTimedOut) WakeSleepers();
  return arrival;
}

void Barrier::WakeSleepers() {
  if (sleepers_.load() > 0) FutexWakeAll(round_);
}

ThreadTeam::ThreadTeam(int size, bool spin) : barrier_(size, spin) {
  for (int thread = 1; thread < size; ++thread)
    threads_.emplace_back([this, thread] { Serve(thread); });
}

ThreadTeam::~ThreadTeam() {
  work_ = nullptr;
  barrier_.Wait();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::Run(const std::function<void(int thread)>& work) {
  work_ = &work;
  barrier_.Wait();
  work(0);
  barrier_.Wait();
}

void ThreadTeam::Serve(int thread) {
  while (true) {
    barrier_.Wait();
    if (work_ == nullptr) return;
    (*work_)(thread);
    barrier_.Wait();
  }
}

}  // namespace tandem
