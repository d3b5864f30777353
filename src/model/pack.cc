#include "model/pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tandem {
namespace {

WeightType OwnType(const TensorView& tensor) {
  return tensor.dtype == DType::kBF16 ? WeightType::kBf16 : WeightType::kFp32;
}

void ReadElements(const TensorView& tensor, int64_t begin, std::span<float> out) {
  ReadFloats(tensor, begin, out);
}
void ReadElements(const TensorView& tensor, int64_t begin, std::span<BFloat16> out) {
  ReadBFloat16(tensor, begin, out);
}

template <typename W>
void Pack(const TensorView& tensor, Range rows, Range columns, PackedMatrix& matrix) {
  const int64_t width = tensor.shape[1];
  std::vector<W> row(columns.size());
  for (int64_t n = 0; n < rows.size(); ++n) {
    ReadElements(tensor, (rows.begin + n) * width + columns.begin, std::span<W>(row));
    W* out = matrix.Panel<W>(n / kPanel) + n % kPanel;
    for (int64_t k = 0; k < columns.size(); ++k) out[k * kPanel] = row[k];
  }
}

template <typename W>
void PackT(const TensorView& tensor, Range rows, Range columns, PackedMatrix& matrix) {
  const int64_t width = tensor.shape[1];
  std::vector<W> row(columns.size());
  for (int64_t k = 0; k < rows.size(); ++k) {
    ReadElements(tensor, (rows.begin + k) * width + columns.begin, std::span<W>(row));
    for (int64_t n = 0; n < columns.size(); ++n) {
      matrix.Panel<W>(n / kPanel)[k * kPanel + n % kPanel] = row[n];
    }
  }
}

}  // namespace

PackedMatrix PackMatrix(const TensorView& tensor, Range rows, Range columns, WeightType type) {
  PackedMatrix matrix(rows.size(), columns.size(), type);
  if (type == WeightType::kBf16) {
    Pack<BFloat16>(tensor, rows, columns, matrix);
  } else {
    Pack<float>(tensor, rows, columns, matrix);
  }
  return matrix;
}

PackedMatrix PackMatrix(const TensorView& tensor, Range rows, Range columns) {
  return PackMatrix(tensor, rows, columns, OwnType(tensor));
}

PackedMatrix PackTransposed(const TensorView& tensor, Range rows, Range columns) {
  PackedMatrix matrix(columns.size(), rows.size(), OwnType(tensor));
  if (matrix.type() == WeightType::kBf16) {
    PackT<BFloat16>(tensor, rows, columns, matrix);
  } else {
    PackT<float>(tensor, rows, columns, matrix);
  }
  return matrix;
}

Buffer<float> CopyFloats(const TensorView& tensor) {
  Buffer<float> copy(tensor.elements());
  ReadFloats(tensor, 0, copy.span());
  return copy;
}

EmbeddingTable CopyEmbedding(const TensorView& tensor) {
  EmbeddingTable table{Buffer<std::byte>(tensor.bytes), OwnType(tensor), tensor.shape[1]};
  std::memcpy(table.data.data(), tensor.data, tensor.bytes);
  return table;
}

}  // namespace tandem
