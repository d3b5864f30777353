// Packs parts of checkpoint tensors for the matrix kernels, from rows that the caller has read.
// Bits of weights are never changed, only moved or widened. No files here.
#pragma once

#include <span>

#include "model/safetensors.h"
#include "ops/matmul.h"

namespace tandem {

// Rows `rows` and columns `columns` of a tensor [out, in], as W with W.columns() = rows; or the
// transpose of that part, W.columns() = columns and W.depth() = rows.
struct PackPart {
  Range rows, columns;
  bool transposed = false;

  int64_t matrix_columns() const { return transposed ? columns.size() : rows.size(); }
  int64_t matrix_depth() const { return transposed ? rows.size() : columns.size(); }
};

// The format that a tensor is kept in. REQUIRES: BF16, F32 or F8_E4M3.
WeightType KeptType(DType dtype);

// The scale blocks of a part, where the tensor's are block_rows x block_columns.
ScaleBlocks BlocksOfPart(const PackPart& part, int64_t block_rows, int64_t block_columns);

// Bytes of PackedMatrix(columns, depth, type, blocks), without making one.
int64_t PackedBytes(int64_t columns, int64_t depth, WeightType type, const ScaleBlocks& blocks);

// Packs what `part` has of the tensor's rows `rows`, which lie at `data` with all their `width`
// columns; `data` may be misaligned. `matrix` holds dtype's kept type, or FP32 for BF16. Calls for
// different rows may run at the same time. REQUIRES: dtype BF16, F32 or F8_E4M3.
void PackRows(DType dtype, const std::byte* data, int64_t width, Range rows, const PackPart& part,
              const PackedMatrix& matrix);

// The same for an FP8 tensor's scales: rows `block_rows` of the scale tensor, with all their
// `width` columns. REQUIRES: matrix.scale_blocks() = BlocksOfPart(part, ...).
void PackScaleRows(const float* scales, int64_t width, Range block_rows, const PackPart& part,
                   const PackedMatrix& matrix);

// Elements of BF16 or F32 bytes as floats (exact), of F8_E8M0 bytes as powers of two (2^(e - 127);
// 0xff is NaN). `data` may be misaligned.
void WidenToFloats(DType dtype, const std::byte* data, std::span<float> out);

// Whether any e4m3 code is a NaN (0x7f, 0xff).
bool HasFp8NaN(std::span<const std::byte> codes);

}  // namespace tandem
