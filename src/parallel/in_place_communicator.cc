// Ranks that share one memory: a collective is one meeting, and nothing is copied.
#include <map>
#include <mutex>

#include "base/check.h"
#include "parallel/group_communicator.h"

namespace tandem {
namespace {

using Memories = std::shared_ptr<const std::vector<AlignedBytes>>;

// Hands each rank of a group the same memory for its n-th allocation. Whoever comes first makes it:
// nobody waits.
class SharedAllocations {
 public:
  explicit SharedAllocations(int group_size) : group_size_(group_size) {}

  Memories Take(size_t number, std::span<const size_t> sizes) {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[number];
    if (entry.memories == nullptr) {
      auto made = std::make_shared<std::vector<AlignedBytes>>();
      for (const size_t size : sizes) made->emplace_back(size);
      entry.memories = std::move(made);
    }
    Memories memories = entry.memories;
    // From then on the buffers alone keep the memory alive.
    if (++entry.taken == group_size_) entries_.erase(number);
    return memories;
  }

 private:
  struct Entry {
    Memories memories;
    int taken = 0;
  };
  const int group_size_;
  std::mutex mutex_;
  std::map<size_t, Entry> entries_;
};

class InPlaceBuffer final : public SymmetricBuffer {
 public:
  explicit InPlaceBuffer(Memories memories) : memories_(std::move(memories)) {}
  std::byte* local() override { return memories_->front().data(); }
  size_t size() const override { return memories_->front().size(); }

 private:
  const Memories memories_;
};

class InPlacePieces final : public GroupPieces {
 public:
  InPlacePieces(Memories memories, int rank, std::span<const size_t> max_piece_bytes,
                int64_t max_own_rows, std::span<const size_t> max_row_bytes)
      : GroupPieces(max_piece_bytes, max_own_rows, max_row_bytes),
        memories_(std::move(memories)),
        rank_(rank) {}

  std::byte* local() override { return OfRank(rank_); }
  std::byte* OfRank(int rank) const { return (*memories_)[rank].data(); }

 private:
  const Memories memories_;
  const int rank_;
};

class InPlaceCommunicator final : public GroupCommunicator {
 public:
  InPlaceCommunicator(Meeting& meeting, int rank, std::shared_ptr<SharedAllocations> allocations)
      : GroupCommunicator(meeting, rank), allocations_(std::move(allocations)) {}

  bool shares_memory() const override { return true; }

  std::unique_ptr<SymmetricBuffer> AllocateGathered(size_t bytes) override {
    const size_t number = NextAllocation({bytes});
    return std::make_unique<InPlaceBuffer>(allocations_->Take(number, {&bytes, 1}));
  }

  std::unique_ptr<PieceBuffer> AllocatePieces(std::span<const size_t> max_piece_bytes,
                                              int64_t max_own_rows,
                                              std::span<const size_t> max_row_bytes) override {
    const size_t number = NextPieces(max_piece_bytes, max_own_rows, max_row_bytes);
    return std::make_unique<InPlacePieces>(allocations_->Take(number, max_piece_bytes), rank(),
                                           max_piece_bytes, max_own_rows, max_row_bytes);
  }

  Status GatherRows(CollectiveTag tag, SymmetricBuffer& buffer, size_t row_bytes,
                    const int32_t* row_begin) override {
    CheckRows(buffer, row_bytes, row_begin);
    RETURN_IF_ERROR(Begin());
    return Meet(tag, 'g', {&row_bytes, 1}, row_begin);
  }

  Status CollectRows(CollectiveTag tag, PieceBuffer& buffer, std::span<const size_t> row_bytes,
                     const int32_t* row_begin) override {
    // Buffers come from this communicator's own allocations.
    auto& pieces = static_cast<InPlacePieces&>(buffer);
    pieces.CheckSizes(row_bytes, row_begin);
    RETURN_IF_ERROR(Begin());
    RETURN_IF_ERROR(Meet(tag, 'c', row_bytes, row_begin));
    const size_t first_row = static_cast<size_t>(row_begin[rank()]);
    for (int peer = 0; peer < size(); ++peer) {
      pieces.PointTo(peer, pieces.OfRank(peer) + first_row * row_bytes[peer]);
    }
    return Status();
  }

 private:
  const std::shared_ptr<SharedAllocations> allocations_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInPlaceCommunicators(Meeting& meeting) {
  const auto allocations = std::make_shared<SharedAllocations>(meeting.size());
  std::vector<std::unique_ptr<Communicator>> made;
  for (int rank = 0; rank < meeting.size(); ++rank) {
    made.push_back(std::make_unique<InPlaceCommunicator>(meeting, rank, allocations));
  }
  return made;
}

}  // namespace tandem
