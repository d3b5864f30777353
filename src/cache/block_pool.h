// Hands out KV blocks of one replica by number. Knows neither what a block holds nor who has it.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// Two counts are kept: blocks handed out, and blocks promised to sequences that will need them
// later, so that handing out a promised block cannot fail. Not thread-safe.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_promised() const { return promised_; }

  // Promises `count` blocks, or returns false if the pool cannot keep that.
  bool Promise(int32_t count);

  // Hands out one promised block; the most recently returned first. REQUIRES: fewer handed out than
  // promised.
  int32_t Take();

  // Ends a promise of `count` blocks, of which `blocks` had been handed out.
  void Return(const std::vector<int32_t>& blocks, int32_t count);

 private:
  int32_t num_blocks_;
  int32_t promised_ = 0;
  std::vector<int32_t> free_;
  std::vector<bool> taken_;
};

}  // namespace tandem
