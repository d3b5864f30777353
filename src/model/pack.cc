#include "model/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tandem {
namespace {

template <typename T>
inline T Load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof value);
  return value;
}

template <typename To, typename From>
inline To Convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return value.ToFloat();
  }
}

Range Intersect(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// out[k * kPanel + n] = row n's element k. A cache line of each of the 16 rows is copied first:
// rows a power of two apart would push each other out of the first-level cache line by line.
template <typename To, typename From>
void PackPanel(const std::byte* data, int64_t row_bytes, int64_t depth, To* out) {
  constexpr int64_t kRun = 64 / static_cast<int64_t>(sizeof(From));
  From lines[kPanel][kRun];
  for (int64_t k0 = 0; k0 < depth; k0 += kRun) {
    const int64_t run = std::min(kRun, depth - k0);
    const std::byte* from = data + k0 * static_cast<int64_t>(sizeof(From));
    for (int64_t n = 0; n < kPanel; ++n) {
      std::memcpy(lines[n], from + n * row_bytes, static_cast<size_t>(run) * sizeof(From));
    }
    for (int64_t k = 0; k < run; ++k, out += kPanel) {
      for (int64_t n = 0; n < kPanel; ++n) out[n] = Convert<To>(lines[n][k]);
    }
  }
}

template <typename To, typename From>
void PackStraight(const std::byte* data, int64_t width, Range rows, const PackPart& part,
                  const PackedMatrix& matrix) {
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(From));
  const Range own = Intersect(rows, part.rows);
  for (int64_t row = own.begin; row < own.end;) {
    const int64_t n = row - part.rows.begin;
    const int64_t count = std::min(own.end - row, kPanel - n % kPanel);
    const std::byte* from = data + (row - rows.begin) * row_bytes +
                            part.columns.begin * static_cast<int64_t>(sizeof(From));
    To* out = matrix.Panel<To>(n / kPanel) + n % kPanel;
    if (count == kPanel) {
      PackPanel<To, From>(from, row_bytes, part.columns.size(), out);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t k = 0; k < part.columns.size(); ++k) {
          out[k * kPanel + i] = Convert<To>(Load<From>(from + i * row_bytes, k));
        }
      }
    }
    row += count;
  }
}

template <typename To, typename From>
void PackTransposed(const std::byte* data, int64_t width, Range rows, const PackPart& part,
                    const PackedMatrix& matrix) {
  const Range own = Intersect(rows, part.rows);
  for (int64_t row = own.begin; row < own.end; ++row) {
    const int64_t k = row - part.rows.begin;
    const int64_t from = (row - rows.begin) * width + part.columns.begin;
    for (int64_t n = 0; n < part.columns.size(); n += kPanel) {
      To* out = matrix.Panel<To>(n / kPanel) + k * kPanel;
      const int64_t count = std::min(kPanel, part.columns.size() - n);
      for (int64_t i = 0; i < count; ++i) out[i] = Convert<To>(Load<From>(data, from + n + i));
    }
  }
}

template <typename To, typename From>
void PackAs(const std::byte* data, int64_t width, Range rows, const PackPart& part,
            const PackedMatrix& matrix) {
  if (part.transposed) {
    PackTransposed<To, From>(data, width, rows, part, matrix);
  } else {
    PackStraight<To, From>(data, width, rows, part, matrix);
  }
}

}  // namespace

WeightType KeptType(DType dtype) {
  if (dtype == DType::kF8E4M3) return WeightType::kFp8;
  CHECK(dtype == DType::kBF16 || dtype == DType::kF32);
  return dtype == DType::kBF16 ? WeightType::kBf16 : WeightType::kFp32;
}

ScaleBlocks BlocksOfPart(const PackPart& part, int64_t block_rows, int64_t block_columns) {
  if (part.transposed) return {block_columns, block_rows, part.columns.begin, part.rows.begin};
  return {block_rows, block_columns, part.rows.begin, part.columns.begin};
}

int64_t PackedBytes(int64_t columns, int64_t depth, WeightType type, const ScaleBlocks& blocks) {
  const int64_t padded = CeilDiv(columns, kPanel) * kPanel;
  return padded * depth * static_cast<int64_t>(BytesOf(type)) +
         padded * blocks.CountAlongDepth(depth) * static_cast<int64_t>(sizeof(float));
}

void PackRows(DType dtype, const std::byte* data, int64_t width, Range rows, const PackPart& part,
              const PackedMatrix& matrix) {
  CHECK(matrix.columns() == part.matrix_columns() && matrix.depth() == part.matrix_depth());
  if (matrix.type() == WeightType::kFp8) {
    CHECK(dtype == DType::kF8E4M3);
    PackAs<uint8_t, uint8_t>(data, width, rows, part, matrix);
  } else if (matrix.type() == WeightType::kBf16) {
    CHECK(dtype == DType::kBF16);
    PackAs<BFloat16, BFloat16>(data, width, rows, part, matrix);
  } else if (dtype == DType::kBF16) {
    PackAs<float, BFloat16>(data, width, rows, part, matrix);
  } else {
    CHECK(dtype == DType::kF32);
    PackAs<float, float>(data, width, rows, part, matrix);
  }
}

void PackScaleRows(const float* scales, int64_t width, Range block_rows, const PackPart& part,
                   const PackedMatrix& matrix) {
  const ScaleBlocks& blocks = matrix.scale_blocks();
  const int64_t rows_per_block = part.transposed ? blocks.depth : blocks.columns;
  const int64_t columns_per_block = part.transposed ? blocks.columns : blocks.depth;
  const int64_t first_row = part.rows.begin / rows_per_block;
  const int64_t first_column = part.columns.begin / columns_per_block;
  for (int64_t s = block_rows.begin; s < block_rows.end; ++s) {
    const float* row = scales + (s - block_rows.begin) * width;
    const Range own = Intersect(part.rows, {s * rows_per_block, (s + 1) * rows_per_block});
    if (own.size() == 0) continue;
    if (part.transposed) {
      for (int64_t n = 0; n < part.columns.size(); ++n) {
        matrix.Scales(n / kPanel)[(s - first_row) * kPanel + n % kPanel] =
            row[(part.columns.begin + n) / columns_per_block];
      }
      continue;
    }
    for (int64_t n = own.begin - part.rows.begin; n < own.end - part.rows.begin; ++n) {
      float* out = matrix.Scales(n / kPanel) + n % kPanel;
      for (int64_t b = 0; b < matrix.num_scale_blocks(); ++b) {
        out[b * kPanel] = row[first_column + b];
      }
    }
  }
}

void WidenToFloats(DType dtype, const std::byte* data, std::span<float> out) {
  if (dtype == DType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), data, out.size_bytes());
  } else if (dtype == DType::kBF16) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = Load<BFloat16>(data, i).ToFloat();
  } else {
    CHECK(dtype == DType::kF8E8M0);
    for (size_t i = 0; i < out.size(); ++i) {
      const uint32_t e = Load<uint8_t>(data, i);
      // A float's exponent field; 2^-127 is below the normal ones, and 255 must not be infinite.
      out[i] = std::bit_cast<float>(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : e << 23);
    }
  }
}

bool HasFp8NaN(std::span<const std::byte> codes) {
  uint8_t found = 0;  // bit 7 once the lower 7 bits of a code were all set
  for (const std::byte code : codes) {
    found |= static_cast<uint8_t>((static_cast<uint8_t>(code) & 0x7f) + 1);
  }
  return (found & 0x80) != 0;
}

}  // namespace tandem
