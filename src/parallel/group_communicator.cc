#include "parallel/group_communicator.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "base/system_memory.h"

namespace tandem {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

// calloc, not an aligned allocation and a memset: fresh pages of the kernel are zero without being
// touched.
AlignedBytes::AlignedBytes(size_t size) : memory_(std::calloc(1, size + kAlignment)), size_(size) {
  CHECK(memory_ != nullptr);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.get());
  data_ = static_cast<std::byte*>(memory_.get()) + (kAlignment - address % kAlignment) % kAlignment;
  TouchPages(data_, size_);
}

void AlignedBytes::Free::operator()(void* memory) const {
  std::free(memory);
}

void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

GroupPieces::GroupPieces(std::span<const size_t> max_piece_bytes, int64_t max_own_rows,
                         std::span<const size_t> max_row_bytes)
    : max_piece_bytes_(max_piece_bytes.begin(), max_piece_bytes.end()),
      max_own_rows_(max_own_rows),
      max_row_bytes_(max_row_bytes.begin(), max_row_bytes.end()),
      from_(max_piece_bytes.size(), nullptr) {
  CHECK(max_row_bytes_.size() == max_piece_bytes_.size() && max_own_rows >= 0);
}

void GroupPieces::CheckSizes(std::span<const size_t> row_bytes, const int32_t* row_begin) const {
  const size_t size = max_piece_bytes_.size();
  CHECK(row_bytes.size() == size && row_begin[0] >= 0);
  for (size_t rank = 0; rank < size; ++rank) {
    CHECK(row_begin[rank] <= row_begin[rank + 1]);
    CHECK(row_begin[rank + 1] - row_begin[rank] <= max_own_rows_);
    CHECK(row_bytes[rank] <= max_row_bytes_[rank]);
    CHECK(static_cast<size_t>(row_begin[size]) * row_bytes[rank] <= max_piece_bytes_[rank]);
  }
}

Status GroupCommunicator::AllGather(CollectiveTag tag, const void* record, size_t record_bytes,
                                    void* all) {
  RETURN_IF_ERROR(Begin());
  CopyBytes(Outbox(record_bytes), record, record_bytes);
  RETURN_IF_ERROR(Meet(tag, 'a', {&record_bytes, 1}, nullptr));
  for (int peer = 0; peer < size(); ++peer) {
    CopyBytes(static_cast<std::byte*>(all) + peer * record_bytes, Inbox(peer).data(), record_bytes);
  }
  return Status();
}

Status GroupCommunicator::Broadcast(CollectiveTag tag, int root, std::vector<std::byte>& message) {
  CHECK(root >= 0 && root < size());
  RETURN_IF_ERROR(Begin());
  if (rank_ == root && size() > 1)
    CopyBytes(Outbox(message.size()), message.data(), message.size());
  const size_t agreed = static_cast<size_t>(root);
  RETURN_IF_ERROR(Meet(tag, 'b', {&agreed, 1}, nullptr));
  if (rank_ != root) {
    const std::span<const std::byte> sent = Inbox(root);
    message.assign(sent.begin(), sent.end());
  }
  return Status();
}

Status GroupCommunicator::Begin() {
  RETURN_IF_ERROR(meeting_.Begin());
  ++sequence_;
  return Status();
}

Status GroupCommunicator::Meet(CollectiveTag tag, char kind, std::span<const size_t> row_bytes,
                               const int32_t* row_begin) {
  uint64_t hash = 0;
  for (const size_t bytes : row_bytes) hash = HashCombine(hash, bytes);
  for (int i = 0; row_begin != nullptr && i <= size(); ++i) {
    hash = HashCombine(hash, static_cast<uint64_t>(row_begin[i]));
  }
  return meeting_.Meet(rank_, {tag, kind, sequence_, hash});
}

void GroupCommunicator::CheckRows(const SymmetricBuffer& buffer, size_t row_bytes,
                                  const int32_t* row_begin) const {
  CHECK(row_begin[0] >= 0);
  for (int rank = 0; rank < size(); ++rank) CHECK(row_begin[rank] <= row_begin[rank + 1]);
  CHECK(static_cast<size_t>(row_begin[size()]) * row_bytes <= buffer.size());
}

size_t GroupCommunicator::NextAllocation(const std::vector<size_t>& sizes) {
  meeting_.AgreeOnAllocation(num_allocations_, sizes);
  return num_allocations_++;
}

size_t GroupCommunicator::NextPieces(std::span<const size_t> max_piece_bytes, int64_t max_own_rows,
                                     std::span<const size_t> max_row_bytes) {
  CHECK(max_piece_bytes.size() == static_cast<size_t>(size()));
  std::vector<size_t> sizes(max_piece_bytes.begin(), max_piece_bytes.end());
  sizes.insert(sizes.end(), max_row_bytes.begin(), max_row_bytes.end());
  sizes.push_back(static_cast<size_t>(max_own_rows));
  return NextAllocation(sizes);
}

}  // namespace tandem
