// Matrix products with packed weights: y = x W^T in FP32. One fused multiply-add chain over K per
// output element, so the bits of a row depend on nothing but that row and the weights. No attention
// and no routing here.
#pragma once

#include <cstdint>
#include <span>

#include "base/numeric.h"
#include "device/buffer.h"
#include "device/program.h"

namespace tandem {

enum class WeightType { kBf16, kFp32 };

inline size_t BytesOf(WeightType type) {
  return type == WeightType::kBf16 ? 2 : 4;
}

// Columns of one packed panel: one Vec16, the width of an AVX-512 register.
inline constexpr int64_t kPanel = 16;

// W [columns (outputs), depth (K)] as panels of kPanel columns, K-major inside: element (n, k) is
// at panel n / 16, place k * 16 + n % 16. The last panel is padded with zeros. Immutable after
// packing.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(int64_t columns, int64_t depth, WeightType type)
      : columns_(columns),
        depth_(depth),
        type_(type),
        data_(static_cast<size_t>(CeilDiv(columns, kPanel) * kPanel * depth) * BytesOf(type)) {}

  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  int64_t num_panels() const { return CeilDiv(columns_, kPanel); }
  WeightType type() const { return type_; }
  size_t bytes() const { return data_.bytes(); }

  template <typename W>
  W* Panel(int64_t panel) const {
    return reinterpret_cast<W*>(data_.data()) + panel * kPanel * depth_;
  }

 private:
  int64_t columns_ = 0;
  int64_t depth_ = 0;
  WeightType type_ = WeightType::kBf16;
  Buffer<std::byte> data_;
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

// y[rows][columns] = x[rows][depth] W^T.
void Matmul(const PackedMatrix& w, InputRows x, int64_t rows, OutputRows y, const Worker& worker);

// One product per head, in one operation: head h reads x + h * x_head floats and writes y + h *
// y_head. All heads have equal shapes.
void MatmulHeads(std::span<const PackedMatrix> w, InputRows x, int64_t x_head, int64_t rows,
                 OutputRows y, int64_t y_head, const Worker& worker);

// K is cut at bounds[0] = 0 <= ... <= bounds[S] = depth, S a power of two up to 16; each segment
// has a chain of its own from +0, and the segments are added in a binary tree (DESIGN 7). An empty
// segment adds +0.
void MatmulSegments(const PackedMatrix& w, std::span<const int32_t> bounds, InputRows x,
                    int64_t rows, OutputRows y, const Worker& worker);

// y = silu(x G^T) * (x U^T): the first half of a gated MLP. Shapes of gate and up are equal.
void GateUp(const PackedMatrix& gate, const PackedMatrix& up, InputRows x, int64_t rows,
            OutputRows y, const Worker& worker);

}  // namespace tandem
