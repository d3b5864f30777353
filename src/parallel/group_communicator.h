// What the two kinds of communicator have in common, and their makers. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/meeting.h"

namespace tandem {

// Zeroed memory, aligned to 64 bytes. Large pieces stay untouched until first written, so they come
// to lie in the memory of the NUMA node that writes them first.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size);
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  std::byte* data_;
  size_t size_;
};

// memcpy that allows null pointers with zero bytes.
void CopyBytes(void* to, const void* from, size_t bytes);

// Pieces of either kind of communicator; CollectRows sets where From points.
class GroupPieces : public PieceBuffer {
 public:
  GroupPieces(std::span<const size_t> max_piece_bytes, int64_t max_own_rows,
              std::span<const size_t> max_row_bytes);

  const std::byte* From(int peer) const override { return from_[peer]; }

  // CHECKs that a collect stays within what was allocated, for all ranks' parts.
  void CheckSizes(std::span<const size_t> row_bytes, const int32_t* row_begin) const;
  void PointTo(int peer, const std::byte* pieces) { from_[peer] = pieces; }

 private:
  const std::vector<size_t> max_piece_bytes_;
  const int64_t max_own_rows_;
  const std::vector<size_t> max_row_bytes_;
  std::vector<const std::byte*> from_;
};

// One rank's end of a meeting. Used by one thread at a time.
class GroupCommunicator : public Communicator {
 public:
  // `rank` counts within the group.
  GroupCommunicator(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }

  // Both copy through the outbox in every kind: records are small, and the callers' memory is free
  // at return.
  Status AllGather(CollectiveTag tag, const void* record, size_t record_bytes, void* all) override;
  Status Broadcast(CollectiveTag tag, int root, std::vector<std::byte>& message) override;

 protected:
  // Starts the next collective: the world's failure, if any.
  Status Begin();
  std::byte* Outbox(size_t bytes) { return meeting_.Outbox(rank_, sequence_, bytes); }
  // Meets the others; `row_bytes` and `row_begin` (may be null) are what all ranks must agree on.
  Status Meet(CollectiveTag tag, char kind, std::span<const size_t> row_bytes,
              const int32_t* row_begin);
  std::span<const std::byte> Inbox(int peer) const { return meeting_.Inbox(peer, sequence_); }

  // CHECKs row_begin and that all rows lie in the buffer.
  void CheckRows(const SymmetricBuffer& buffer, size_t row_bytes, const int32_t* row_begin) const;
  // The number of this rank's next allocation, CHECKed to be of equal sizes on all ranks.
  size_t NextAllocation(const std::vector<size_t>& sizes);
  size_t NextPieces(std::span<const size_t> max_piece_bytes, int64_t max_own_rows,
                    std::span<const size_t> max_row_bytes);

 private:
  Meeting& meeting_;
  const int rank_;
  uint64_t sequence_ = 0;
  size_t num_allocations_ = 0;
};

// All ranks' communicators of the group that `meeting` unites; it must outlive them.
// In place: a gathered buffer is one memory for the group, and pieces are read where their maker
// wrote them.
std::vector<std::unique_ptr<Communicator>> MakeInPlaceCommunicators(Meeting& meeting);
// Copying: all memory is private to a rank; every byte goes through an outbox.
std::vector<std::unique_ptr<Communicator>> MakeCopyingCommunicators(Meeting& meeting);

}  // namespace tandem
