#include "model/pack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "ops/test_rows.h"

namespace tandem {
namespace {

// A tensor [rows, columns] of random values at an odd address, as files may hold them.
class TestTensor {
 public:
  TestTensor(DType dtype, int64_t rows, int64_t columns) {
    std::mt19937 rng(static_cast<uint32_t>(rows * 1000 + columns));
    view.dtype = dtype;
    view.shape = {rows, columns};
    view.bytes = static_cast<size_t>(rows * columns) * DTypeSize(dtype);
    bytes_.resize(view.bytes + 1);
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(rng());
    view.data = bytes_.data() + 1;
  }

  // Element (r, c), as a float.
  float At(int64_t r, int64_t c) const {
    uint32_t bits = 0;
    const size_t size = DTypeSize(view.dtype);
    std::memcpy(&bits, view.data + (r * view.shape[1] + c) * size, size);
    return std::bit_cast<float>(size == 2 ? bits << 16 : bits);
  }

  TensorView view;

 private:
  std::vector<std::byte> bytes_;
};

void ExpectPaddingIsZero(const PackedMatrix& w) {
  for (int64_t n = w.columns(); n < w.num_panels() * 16; ++n) {
    for (int64_t k = 0; k < w.depth(); ++k) ASSERT_EQ(Bits(Element(w, n, k)), 0u);
  }
}

struct Part {
  Range rows, columns;
};

// Of a [37, 23] tensor: all of it, parts inside, single rows, nothing.
const Part kParts[] = {{{0, 37}, {0, 23}},  {{5, 22}, {3, 20}}, {{16, 32}, {7, 8}},
                       {{36, 37}, {0, 23}}, {{4, 4}, {0, 23}},  {{0, 37}, {9, 9}}};

TEST(Pack, MatrixKeepsBitsAndOrder) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const TestTensor tensor(dtype, 37, 23);
    for (const Part& part : kParts) {
      const PackedMatrix w = PackMatrix(tensor.view, part.rows, part.columns);
      EXPECT_EQ(w.type() == WeightType::kBf16, dtype == DType::kBF16);
      ASSERT_EQ(w.columns(), part.rows.size());
      ASSERT_EQ(w.depth(), part.columns.size());
      EXPECT_EQ(w.bytes(),
                (part.rows.size() + 15) / 16 * 16 * part.columns.size() * DTypeSize(dtype));
      for (int64_t n = 0; n < w.columns(); ++n) {
        for (int64_t k = 0; k < w.depth(); ++k) {
          ASSERT_EQ(Bits(Element(w, n, k)),
                    Bits(tensor.At(part.rows.begin + n, part.columns.begin + k)));
        }
      }
      ExpectPaddingIsZero(w);
    }
  }
}

TEST(Pack, TransposedSwapsRowsAndColumns) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const TestTensor tensor(dtype, 37, 23);
    for (const Part& part : kParts) {
      const PackedMatrix w = PackTransposed(tensor.view, part.rows, part.columns);
      ASSERT_EQ(w.columns(), part.columns.size());
      ASSERT_EQ(w.depth(), part.rows.size());
      for (int64_t n = 0; n < w.columns(); ++n) {
        for (int64_t k = 0; k < w.depth(); ++k) {
          ASSERT_EQ(Bits(Element(w, n, k)),
                    Bits(tensor.At(part.rows.begin + k, part.columns.begin + n)));
        }
      }
      ExpectPaddingIsZero(w);
    }
  }
}

TEST(Pack, BFloat16WidensExactly) {
  const TestTensor tensor(DType::kBF16, 19, 5);
  const PackedMatrix w = PackMatrix(tensor.view, {2, 19}, {1, 4}, WeightType::kFp32);
  EXPECT_EQ(w.type(), WeightType::kFp32);
  for (int64_t n = 0; n < w.columns(); ++n) {
    for (int64_t k = 0; k < w.depth(); ++k) {
      ASSERT_EQ(Bits(Element(w, n, k)), Bits(tensor.At(2 + n, 1 + k)));
    }
  }
  ExpectPaddingIsZero(w);
}

TEST(Pack, VectorsBecomeFloats) {
  const TestTensor bf16(DType::kBF16, 1, 21), fp32(DType::kF32, 1, 21);
  const Buffer<float> a = CopyFloats(bf16.view), b = CopyFloats(fp32.view);
  ASSERT_EQ(a.size(), 21u);
  for (int64_t i = 0; i < 21; ++i) {
    EXPECT_EQ(Bits(a[i]), Bits(bf16.At(0, i)));
    EXPECT_EQ(Bits(b[i]), Bits(fp32.At(0, i)));
  }
}

TEST(Pack, EmbeddingsKeepTheirFormat) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const TestTensor tensor(dtype, 4, 9);
    const EmbeddingTable table = CopyEmbedding(tensor.view);
    EXPECT_EQ(table.columns, 9);
    EXPECT_EQ(table.data.bytes(), tensor.view.bytes);
    float row[9];
    table.Read(3, row);
    for (int64_t c = 0; c < 9; ++c) EXPECT_EQ(Bits(row[c]), Bits(tensor.At(3, c)));
  }
}

}  // namespace
}  // namespace tandem
