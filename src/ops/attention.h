// What absorbed latent attention (MLA) works on: the paged cache, its number formats, rotary
// embedding, query rows. The operation itself, for prefill, decode and verification alike, is in
// ops/kernels.h; no projections here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/matmul.h"

namespace tandem {

// kFp8: the latent as e4m3 with one FP32 scale, the power of two 2^ceil(log2(max(largest magnitude
// / 448, 1e-4))), per kLatentScaleBlock values, the rotary part as BF16 (FlashMLA's format). A
// value is read as code * scale. A NaN makes its block's scale NaN: NaN codes have no value here.
enum class LatentFormat { kBf16, kFp8, kFp32 };

inline constexpr int kLatentScaleBlock = 128;

// Bytes of one slot: for kFp8 the codes, then the scales, then the rotary part, none aligned.
inline int64_t SlotBytes(LatentFormat format, int64_t kv_lora_rank, int64_t rope_dim) {
  if (format == LatentFormat::kFp8) {
    return kv_lora_rank + 4 * CeilDiv(kv_lora_rank, kLatentScaleBlock) + 2 * rope_dim;
  }
  return (kv_lora_rank + rope_dim) * (format == LatentFormat::kBf16 ? 2 : 4);
}

// Cosines and sines of YaRN's (or plain) rotary angles: [positions][pairs], multiplied by the
// model's mscale ratio.
class RopeTable {
 public:
  RopeTable() = default;
  // inv_freq[rope_dim / 2]; angle = position * inv_freq in FP32 (MODEL.md 2.1).
  RopeTable(std::span<const float> inv_freq, float multiplier, int64_t positions);

  // Rotates interleaved pairs (x[2i], x[2i+1]) in place.
  void Rotate(int64_t position, float* x) const;
  size_t bytes() const { return cos_.bytes() + sin_.bytes(); }

 private:
  int64_t pairs_ = 0;
  Buffer<float> cos_, sin_;
};

// Writes values [kv_lora_rank + rope_dim] as one slot in the cache's format.
void EncodeLatent(LatentFormat format, const float* values, int64_t kv_lora_rank, int64_t rope_dim,
                  std::byte* out);

// Where the latent rows of one layer live: slot s of a sequence is row s % block_size of block
// table[s / block_size].
struct LatentCache {
  std::byte* layer = nullptr;  // [blocks][block_size][slot_bytes]
  int64_t slot_bytes = 0;
  int32_t block_size = 1;

  std::byte* Slot(const int32_t* table, int64_t slot) const {
    const int64_t block = table[slot / block_size];
    return layer + (block * block_size + slot % block_size) * slot_bytes;
  }
};

struct AttentionShape {
  int num_heads = 0;  // of this rank
  int kv_lora_rank = 0;
  int rope_dim = 0;
  float scale = 1.0f;  // softmax scale
  LatentFormat format = LatentFormat::kBf16;
};

// One query row: attends to slots [first_key, position] of its table; inactive rows give zeros.
struct AttentionRow {
  const int32_t* table = nullptr;
  int32_t position = 0;
  bool active = false;
};

// Keys per tile: 64 keys fill four Vec16 of scores, and 64 x 576 floats of converted keys stay in a
// 256 KiB L2 cache.
inline constexpr int kAttentionTile = 64;

}  // namespace tandem
