// The operands of matrix products y = x W^T in FP32: packed weights and rows; the products are in
// ops/kernels.h. One fused multiply-add chain over K per output element (FP8: one per scale block),
// so the bits of a row depend on nothing but that row and the weights.
//
// "A chain over K" means, for FP8: sum from +0; for each scale block of the whole matrix that
// the range touches, ascending, part = chain from +0 over the block's k inside the range of x[k] *
// (code[k] / 256), sum = fma(part, 256 * scale, sum). (256: codes become numbers by way of fp16,
// which puts them 2^-8 too low; as powers of two both factors are exact.)
#pragma once

#include <cstdint>

#include "base/numeric.h"
#include "device/buffer.h"
#include "device/program.h"

namespace tandem {

// FP8 is e4m3 (no infinities), with scales per block of the matrix.
enum class WeightType { kBf16, kFp32, kFp8 };

inline size_t BytesOf(WeightType type) {
  return type == WeightType::kFp8 ? 1 : type == WeightType::kBf16 ? 2 : 4;
}

// Columns of one packed panel: one Vec16, the width of an AVX-512 register.
inline constexpr int64_t kPanel = 16;

// The scale blocks of an FP8 matrix, and where a part of it lies in the whole: blocks are counted
// in the whole's coordinates, so that a rank's part has the same chains as the whole (DESIGN 7).
struct ScaleBlocks {
  int64_t columns = 0, depth = 0;             // of one block: outputs and K; 0 = no scales
  int64_t first_column = 0, first_depth = 0;  // of the part

  // Blocks along K that a part of `part_depth` touches.
  int64_t CountAlongDepth(int64_t part_depth) const {
    if (depth == 0 || part_depth == 0) return 0;
    return CeilDiv(first_depth + part_depth, depth) - first_depth / depth;
  }
  // Where block b of those begins, counted from the part's first element, at least 0.
  int64_t Begin(int64_t b) const {
    return b == 0 ? 0 : (first_depth / depth + b) * depth - first_depth;
  }
  // The block of element k of the part, counted like b.
  int64_t BlockOf(int64_t k) const { return (first_depth + k) / depth - first_depth / depth; }
};

// W [columns (outputs), depth (K)] as panels of kPanel columns, K-major inside: element (n, k) is
// at panel n / 16, place k * 16 + n % 16. The last panel is padded with zeros. An FP8 matrix holds
// the checkpoint's codes, and for each panel and scale block along K one scale per column; its
// element is code * scale. Immutable after packing.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // REQUIRES: blocks.depth > 0 exactly if type is kFp8.
  PackedMatrix(int64_t columns, int64_t depth, WeightType type, const ScaleBlocks& blocks = {})
      : columns_(columns),
        depth_(depth),
        type_(type),
        blocks_(blocks),
        data_(static_cast<size_t>(num_panels() * kPanel * depth) * BytesOf(type)),
        scales_(static_cast<size_t>(num_panels() * num_scale_blocks() * kPanel)) {
    CHECK((blocks.depth > 0) == (type == WeightType::kFp8));
  }

  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  int64_t num_panels() const { return CeilDiv(columns_, kPanel); }
  WeightType type() const { return type_; }
  const ScaleBlocks& scale_blocks() const { return blocks_; }
  int64_t num_scale_blocks() const { return blocks_.CountAlongDepth(depth_); }
  size_t bytes() const { return data_.bytes() + scales_.bytes(); }

  // W is BFloat16, float, or for FP8 Float8E4M3 or uint8_t. Codes must not be NaN (0x7f, 0xff).
  template <typename W>
  W* Panel(int64_t panel) const {
    return reinterpret_cast<W*>(data_.data()) + panel * kPanel * depth_;
  }
  // [num_scale_blocks][kPanel]
  float* Scales(int64_t panel) const {
    return scales_.data() + panel * num_scale_blocks() * kPanel;
  }

 private:
  int64_t columns_ = 0;
  int64_t depth_ = 0;
  WeightType type_ = WeightType::kBf16;
  ScaleBlocks blocks_;
  Buffer<std::byte> data_;
  Buffer<float> scales_;
};

// The rows of one operand or result: row i starts at data + i * stride floats.
template <typename T>
struct RowsOf {
  T* data;
  int64_t stride;
  T* row(int64_t i) const { return data + i * stride; }
};
using InputRows = RowsOf<const float>;
using OutputRows = RowsOf<float>;

}  // namespace tandem
