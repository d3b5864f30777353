// Ranks with private memory, as stand-in for several processes: what a rank sends it copies into
// its outbox, and what it receives it copies out of others' outboxes. As outboxes exist twice, one
// meeting per collective is enough here too: a rank may change its own memory at once.
#include "base/check.h"
#include "parallel/group_communicator.h"

namespace tandem {
namespace {

class PrivateBuffer final : public SymmetricBuffer {
 public:
  explicit PrivateBuffer(size_t bytes) : memory_(bytes) {}
  std::byte* local() override { return memory_.data(); }
  size_t size() const override { return memory_.size(); }

 private:
  AlignedBytes memory_;
};

class CopiedPieces final : public GroupPieces {
 public:
  CopiedPieces(int rank, std::span<const size_t> max_piece_bytes, int64_t max_own_rows,
               std::span<const size_t> max_row_bytes)
      : GroupPieces(max_piece_bytes, max_own_rows, max_row_bytes), local_(max_piece_bytes[rank]) {
    for (const size_t bytes : max_row_bytes) received_.emplace_back(max_own_rows * bytes);
  }

  std::byte* local() override { return local_.data(); }
  std::byte* Received(int peer) { return received_[peer].data(); }

 private:
  AlignedBytes local_;
  std::vector<AlignedBytes> received_;
};

class CopyingCommunicator final : public GroupCommunicator {
 public:
  using GroupCommunicator::GroupCommunicator;

  bool shares_memory() const override { return false; }

  std::unique_ptr<SymmetricBuffer> AllocateGathered(size_t bytes) override {
    NextAllocation({bytes});
    return std::make_unique<PrivateBuffer>(bytes);
  }

  std::unique_ptr<PieceBuffer> AllocatePieces(std::span<const size_t> max_piece_bytes,
                                              int64_t max_own_rows,
                                              std::span<const size_t> max_row_bytes) override {
    NextPieces(max_piece_bytes, max_own_rows, max_row_bytes);
    return std::make_unique<CopiedPieces>(rank(), max_piece_bytes, max_own_rows, max_row_bytes);
  }

  Status GatherRows(CollectiveTag tag, SymmetricBuffer& buffer, size_t row_bytes,
                    const int32_t* row_begin) override {
    CheckRows(buffer, row_bytes, row_begin);
    RETURN_IF_ERROR(Begin());
    Send(buffer.local(), row_bytes, row_begin[rank()], row_begin[rank() + 1]);
    RETURN_IF_ERROR(Meet(tag, 'g', {&row_bytes, 1}, row_begin));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      CopyBytes(buffer.local() + row_begin[peer] * row_bytes, Inbox(peer).data(),
                (row_begin[peer + 1] - row_begin[peer]) * row_bytes);
    }
    return Status();
  }

  Status CollectRows(CollectiveTag tag, PieceBuffer& buffer, std::span<const size_t> row_bytes,
                     const int32_t* row_begin) override {
    // Buffers come from this communicator's own allocations.
    auto& pieces = static_cast<CopiedPieces&>(buffer);
    pieces.CheckSizes(row_bytes, row_begin);
    RETURN_IF_ERROR(Begin());
    Send(pieces.local(), row_bytes[rank()], row_begin[0], row_begin[size()]);
    RETURN_IF_ERROR(Meet(tag, 'c', row_bytes, row_begin));
    const int32_t first_row = row_begin[rank()];
    for (int peer = 0; peer < size(); ++peer) {
      const std::byte* sent = Inbox(peer).data() + (first_row - row_begin[0]) * row_bytes[peer];
      CopyBytes(pieces.Received(peer), sent, (row_begin[rank() + 1] - first_row) * row_bytes[peer]);
      pieces.PointTo(peer, pieces.Received(peer));
    }
    return Status();
  }

 private:
  void Send(const std::byte* rows, size_t row_bytes, int32_t begin, int32_t end) {
    const size_t bytes = (end - begin) * row_bytes;
    CopyBytes(Outbox(bytes), rows + begin * row_bytes, bytes);
  }
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeCopyingCommunicators(Meeting& meeting) {
  std::vector<std::unique_ptr<Communicator>> made;
  for (int rank = 0; rank < meeting.size(); ++rank) {
    made.push_back(std::make_unique<CopyingCommunicator>(meeting, rank));
  }
  return made;
}

}  // namespace tandem
