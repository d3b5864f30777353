// The memory of one KV pool: for each layer, blocks of slots of a fixed number of bytes. Knows no
// number formats.
#pragma once

#include <cstdint>

#include "device/buffer.h"

namespace tandem {

class KvStorage {
 public:
  KvStorage(int64_t num_layers, int64_t num_blocks, int64_t block_size, int64_t slot_bytes)
      : layer_bytes_(num_blocks * block_size * slot_bytes), data_(num_layers * layer_bytes_) {}

  // [blocks][block_size][slot_bytes]
  std::byte* layer(int64_t layer) { return data_.data() + layer * layer_bytes_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.bytes()); }

  // Makes the system provide the pages of [begin, end) of bytes(), near the calling thread's core.
  void Touch(int64_t begin, int64_t end) { TouchPages(data_.data() + begin, end - begin); }

 private:
  int64_t layer_bytes_;
  Buffer<std::byte> data_;
};

}  // namespace tandem
