#include "cache/block_pool.h"

#include "base/check.h"

namespace tandem {

BlockPool::BlockPool(int32_t num_blocks) : num_blocks_(num_blocks), taken_(num_blocks, false) {
  CHECK(num_blocks >= 0);
  for (int32_t b = num_blocks - 1; b >= 0; --b) free_.push_back(b);
}

bool BlockPool::Promise(int32_t count) {
  if (count > num_blocks_ - promised_) return false;
  promised_ += count;
  return true;
}

int32_t BlockPool::Take() {
  CHECK(!free_.empty() && num_blocks_ - num_free() < promised_);
  const int32_t block = free_.back();
  free_.pop_back();
  taken_[block] = true;
  return block;
}

void BlockPool::Return(const std::vector<int32_t>& blocks, int32_t count) {
  for (const int32_t block : blocks) {
    CHECK(taken_[block]);
    taken_[block] = false;
    free_.push_back(block);
  }
  promised_ -= count;
  CHECK(promised_ >= num_blocks_ - num_free());
}

}  // namespace tandem
