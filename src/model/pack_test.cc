#include "model/pack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "ops/test_rows.h"

namespace tandem {
namespace {

// A tensor [rows, columns] of random bits at an odd address, as strips of files may hold them.
class RandomTensor {
 public:
  RandomTensor(DType dtype, int64_t rows, int64_t columns)
      : dtype_(dtype), rows_(rows), columns_(columns) {
    std::mt19937 rng(static_cast<uint32_t>(rows * 1000 + columns));
    bytes_.resize(static_cast<size_t>(rows * columns) * DTypeSize(dtype) + 1);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(rng());
  }

  int64_t rows() const { return rows_; }
  const std::byte* data(int64_t row) const {
    return bytes_.data() + 1 + static_cast<size_t>(row * columns_) * DTypeSize(dtype_);
  }

  // The bits of element (r, c); BF16 as the float's.
  uint32_t At(int64_t r, int64_t c) const {
    uint32_t bits = 0;
    const size_t size = DTypeSize(dtype_);
    std::memcpy(&bits, data(r) + static_cast<size_t>(c) * size, size);
    return dtype_ == DType::kBF16 ? bits << 16 : bits;
  }

  // The part, packed in strips of `strip` rows.
  PackedMatrix Pack(const PackPart& part, int64_t strip, WeightType type,
                    const ScaleBlocks& blocks = {}) const {
    PackedMatrix matrix(part.matrix_columns(), part.matrix_depth(), type, blocks);
    for (int64_t row = 0; row < rows_; row += strip) {
      PackRows(dtype_, data(row), columns_, {row, std::min(row + strip, rows_)}, part, matrix);
    }
    return matrix;
  }

 private:
  const DType dtype_;
  const int64_t rows_, columns_;
  std::vector<std::byte> bytes_;
};

// The stored bits of element (n, k), BF16 as a float's.
uint32_t StoredBits(const PackedMatrix& w, int64_t n, int64_t k) {
  const int64_t place = k * kPanel + n % kPanel;
  if (w.type() == WeightType::kFp8) return w.Panel<uint8_t>(n / kPanel)[place];
  return Bits(Element(w, n, k));
}

void ExpectPart(const PackedMatrix& w, const RandomTensor& tensor, const PackPart& part) {
  for (int64_t n = 0; n < w.num_panels() * kPanel; ++n) {
    for (int64_t k = 0; k < w.depth(); ++k) {
      const int64_t row = part.rows.begin + (part.transposed ? k : n);
      const int64_t column = part.columns.begin + (part.transposed ? n : k);
      const uint32_t expected = n < w.columns() ? tensor.At(row, column) : 0;
      ASSERT_EQ(StoredBits(w, n, k), expected) << n << " " << k;
    }
  }
}

// Of a [37, 23] tensor: all of it, parts inside, single rows, nothing.
const PackPart kParts[] = {{{0, 37}, {0, 23}},  {{5, 22}, {3, 20}}, {{16, 32}, {7, 8}},
                           {{36, 37}, {0, 23}}, {{4, 4}, {0, 23}},  {{0, 37}, {9, 9}}};

TEST(Pack, PartsKeepBitsAndOrderWhateverTheStrips) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    const RandomTensor tensor(dtype, 37, 23);
    const WeightType type = KeptType(dtype);
    for (PackPart part : kParts) {
      for (const bool transposed : {false, true}) {
        part.transposed = transposed;
        const ScaleBlocks blocks =
            type == WeightType::kFp8 ? BlocksOfPart(part, 5, 7) : ScaleBlocks{};
        for (const int64_t strip : {1, 7, 16, 37}) {
          const PackedMatrix w = tensor.Pack(part, strip, type, blocks);
          ExpectPart(w, tensor, part);
          EXPECT_EQ(static_cast<int64_t>(w.bytes()),
                    PackedBytes(w.columns(), w.depth(), type, blocks));
        }
      }
    }
  }
}

TEST(Pack, BFloat16WidensExactly) {
  const RandomTensor tensor(DType::kBF16, 39, 5);
  const PackPart part{{2, 39}, {1, 4}};
  const PackedMatrix w = tensor.Pack(part, 16, WeightType::kFp32);
  EXPECT_EQ(w.type(), WeightType::kFp32);
  ExpectPart(w, tensor, part);
}

// Every element of a part finds the scale of its block of the whole tensor [rows, columns], for
// block sizes that divide nothing.
void ExpectScales(int64_t block_rows, int64_t block_columns, const PackPart& part, int64_t strip) {
  const int64_t rows = CeilDiv(37, block_rows), columns = CeilDiv(23, block_columns);
  std::vector<float> scales(rows * columns);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i + 1);
  PackedMatrix w(part.matrix_columns(), part.matrix_depth(), WeightType::kFp8,
                 BlocksOfPart(part, block_rows, block_columns));
  for (int64_t s = 0; s < rows; s += strip) {
    PackScaleRows(scales.data() + s * columns, columns, {s, std::min(s + strip, rows)}, part, w);
  }
  for (int64_t n = 0; n < w.columns(); ++n) {
    for (int64_t b = 0; b < w.num_scale_blocks(); ++b) {
      const int64_t end = b + 1 < w.num_scale_blocks() ? w.scale_blocks().Begin(b + 1) : w.depth();
      for (int64_t k = w.scale_blocks().Begin(b); k < end; ++k) {
        const int64_t row = part.rows.begin + (part.transposed ? k : n);
        const int64_t column = part.columns.begin + (part.transposed ? n : k);
        ASSERT_EQ(w.Scales(n / kPanel)[b * kPanel + n % kPanel],
                  scales[row / block_rows * columns + column / block_columns])
            << n << " " << k;
      }
    }
  }
}

TEST(Pack, ScalesAreThoseOfTheWholesBlocks) {
  for (const auto& [block_rows, block_columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 7}, {16, 4}, {128, 128}, {3, 23}}) {
    for (PackPart part : kParts) {
      for (const bool transposed : {false, true}) {
        part.transposed = transposed;
        for (const int64_t strip : {1, 3, 100}) {
          ExpectScales(block_rows, block_columns, part, strip);
        }
      }
    }
  }
}

TEST(Pack, FloatsAreExact) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const RandomTensor tensor(dtype, 1, 21);
    float values[21];
    WidenToFloats(dtype, tensor.data(0), values);
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(Bits(values[i]), tensor.At(0, i));
  }
  std::byte exponents[256];
  for (int e = 0; e < 256; ++e) exponents[e] = static_cast<std::byte>(e);
  float powers[256];
  WidenToFloats(DType::kF8E8M0, exponents, powers);
  for (int e = 0; e < 255; ++e) EXPECT_EQ(powers[e], std::ldexp(1.0f, e - 127)) << e;
  EXPECT_TRUE(std::isnan(powers[255]));
}

TEST(Pack, FindsEveryFp8NaN) {
  std::vector<std::byte> codes;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<std::byte>(code));
  }
  EXPECT_FALSE(HasFp8NaN(codes));
  EXPECT_FALSE(HasFp8NaN({}));
  for (size_t i = 0; i < codes.size(); ++i) {
    const std::byte code = codes[i];
    codes[i] = static_cast<std::byte>(i % 2 == 0 ? 0x7f : 0xff);
    EXPECT_TRUE(HasFp8NaN(codes)) << i;
    codes[i] = code;
  }
}

}  // namespace
}  // namespace tandem
