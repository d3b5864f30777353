#include "parallel/meeting.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/check.h"

namespace tandem {
namespace {

const char* KindName(char kind) {
  switch (kind) {
    case 'g':
      return "gather";
    case 'c':
      return "collect";
    case 'a':
      return "all-gather";
    case 'b':
      return "broadcast";
  }
  return "unknown";
}

bool SameCall(const Call& a, const Call& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.size_hash == b.size_hash &&
         a.tag.index == b.tag.index &&
         (a.tag.name == b.tag.name || std::strcmp(a.tag.name, b.tag.name) == 0);
}

// What two different calls differ in, if Describe shows them alike.
const char* HiddenDifference(Call a, const Call& b) {
  a.size_hash = b.size_hash;
  if (!SameCall(a, b)) return "";
  return a.kind == 'b' ? " with another root" : " with other sizes";
}

}  // namespace

std::string Describe(const Post& post) {
  const Call call = post.Get();
  const std::string& group = post.meeting->name_;
  return fmt::format("{} {}/{}{}{} (sequence {})", KindName(call.kind), call.tag.name,
                     call.tag.index, group.empty() ? "" : " of ", group, call.sequence);
}

void Post::Set(const Call& call) {
  name.store(call.tag.name, std::memory_order_relaxed);
  index.store(call.tag.index, std::memory_order_relaxed);
  kind.store(call.kind, std::memory_order_relaxed);
  size_hash.store(call.size_hash, std::memory_order_relaxed);
  // A reader that sees the number (LateReport) sees a whole call.
  sequence.store(call.sequence, std::memory_order_release);
}

Call Post::Get() const {
  Call call;
  call.sequence = sequence.load(std::memory_order_acquire);
  call.tag = {name.load(std::memory_order_relaxed), index.load(std::memory_order_relaxed)};
  call.kind = kind.load(std::memory_order_relaxed);
  call.size_hash = size_hash.load(std::memory_order_relaxed);
  return call;
}

Meeting::Meeting(std::string name, int first_rank, int size, const WorldOptions& options,
                 std::span<RankState> states, WorldFailure& failure)
    : name_(std::move(name)),
      first_rank_(first_rank),
      size_(size),
      deadline_seconds_(options.deadline_seconds),
      states_(states),
      failure_(failure),
      barrier_(size, options.spin),
      places_(std::make_unique<Place[]>(size)) {
  CHECK(options.deadline_seconds > 0);
  for (int rank = 0; rank < size; ++rank) {
    for (Post& post : places_[rank].posts) post.meeting = this;
  }
  failure.Watch(&barrier_);
}

std::byte* Meeting::Outbox(int rank, uint64_t sequence, size_t bytes) {
  Place& place = places_[rank];
  std::vector<std::byte>& outbox = place.outboxes[sequence % 2];
  if (outbox.size() < bytes) outbox.resize(bytes);
  place.outbox_bytes[sequence % 2] = bytes;
  return outbox.data();
}

std::span<const std::byte> Meeting::Inbox(int peer, uint64_t sequence) const {
  const Place& place = places_[peer];
  return {place.outboxes[sequence % 2].data(), place.outbox_bytes[sequence % 2]};
}

Status Meeting::Meet(int rank, const Call& call) {
  RankState& state = states_[first_rank_ + rank];
  Post& post = places_[rank].posts[call.sequence % 2];
  post.Set(call);
  state.inside.store(true, std::memory_order_relaxed);
  state.last.store(&post, std::memory_order_release);
  if (state.traced) {
    state.trace.push_back({call.sequence, fmt::format("{}/{}", call.tag.name, call.tag.index),
                           call.kind, call.size_hash});
  }
  if (size_ > 1) {
    const Arrival arrival = barrier_.WaitFor(deadline_seconds_);
    if (arrival == Arrival::kTimedOut) failure_.Set(LateReport(rank, call));
    if (arrival != Arrival::kMet) return failure_.Await();
    if (!AllAgree(call)) {
      failure_.Set(MismatchReport(call.sequence));
      return failure_.Await();
    }
  }
  state.inside.store(false, std::memory_order_relaxed);
  return Status();
}

bool Meeting::AllAgree(const Call& call) const {
  for (int peer = 0; peer < size_; ++peer) {
    if (!SameCall(call, places_[peer].posts[call.sequence % 2].Get())) return false;
  }
  return true;
}

// The same text on every rank: the first rank whose call differs from that of the group's first.
Status Meeting::MismatchReport(uint64_t sequence) const {
  const Post& first = places_[0].posts[sequence % 2];
  int rank = 1;
  while (SameCall(first.Get(), places_[rank].posts[sequence % 2].Get())) CHECK(++rank < size_);
  const Post& other = places_[rank].posts[sequence % 2];
  return Internal(fmt::format("ranks disagree: rank {} called {}, rank {} called {}{}",
                              first_rank_ + rank, Describe(other), first_rank_, Describe(first),
                              HiddenDifference(first.Get(), other.Get())));
}

Status Meeting::LateReport(int rank, const Call& call) const {
  std::string late;
  for (int peer = 0; peer < size_; ++peer) {
    const Post& post = places_[peer].posts[call.sequence % 2];
    if (post.sequence.load(std::memory_order_acquire) == call.sequence) continue;
    const RankState& state = states_[first_rank_ + peer];
    const Post* last = state.last.load(std::memory_order_acquire);
    std::string doing = "which called no collective yet";
    if (last != nullptr) {
      doing =
          fmt::format("which {} {}",
                      state.inside.load(std::memory_order_relaxed) ? "waits in" : "last completed",
                      Describe(*last));
    }
    late += fmt::format("{}rank {}, {}", late.empty() ? "" : "; for ", first_rank_ + peer, doing);
  }
  if (late.empty()) late = "a rank that came too late";
  return DeadlineExceeded(fmt::format("rank {} waited {} s in {} for {}", first_rank_ + rank,
                                      deadline_seconds_,
                                      Describe(places_[rank].posts[call.sequence % 2]), late));
}

void Meeting::AgreeOnAllocation(size_t number, const std::vector<size_t>& sizes) {
  std::lock_guard lock(allocation_mutex_);
  if (number == allocations_.size()) allocations_.push_back(sizes);
  CHECK(number < allocations_.size() && allocations_[number] == sizes);
}

}  // namespace tandem
