// Packs parts of checkpoint tensors for the matrix kernels. Bits of weights are never changed, only
// moved or widened.
#pragma once

#include "model/safetensors.h"
#include "ops/matmul.h"
#include "ops/rows.h"

namespace tandem {

// Rows `rows` and columns `columns` of a matrix [out, in], as W with W.columns() = rows. `type`
// must hold the tensor's format (BF16 packs as either, F32 as FP32).
PackedMatrix PackMatrix(const TensorView& tensor, Range rows, Range columns, WeightType type);
// The same in the tensor's own format.
PackedMatrix PackMatrix(const TensorView& tensor, Range rows, Range columns);
// The transpose of that part: W.columns() = columns, W.depth() = rows.
PackedMatrix PackTransposed(const TensorView& tensor, Range rows, Range columns);

Buffer<float> CopyFloats(const TensorView& tensor);
EmbeddingTable CopyEmbedding(const TensorView& tensor);

}  // namespace tandem
