// Inputs and scalar references for tests of src/ops: rows with guards around them, random matrices,
// the documented orders of sums written out one number at a time. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "ops/matmul.h"

namespace tandem {

inline float RandomFloat(std::mt19937& rng) {
  return static_cast<int32_t>(rng()) * 0x1p-30f;
}

inline uint32_t Bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

// Rows that begin at an odd address, with a gap behind each. Everything starts as a NaN that no
// operation makes: reading outside of the columns spoils results, and writing there is seen.
class TestRows {
 public:
  TestRows(int64_t rows, int64_t columns, int64_t gap = 3)
      : rows_(rows), columns_(columns), stride_(columns + gap), data_(1 + rows * stride_ + 16) {
    std::fill(data_.begin(), data_.end(), std::bit_cast<float>(kGuard));
  }
  TestRows(int64_t rows, int64_t columns, std::mt19937& rng) : TestRows(rows, columns) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) row(r)[c] = RandomFloat(rng);
    }
  }

  float* row(int64_t r) { return data_.data() + 1 + r * stride_; }
  int64_t stride() const { return stride_; }
  InputRows in() { return {row(0), stride_}; }
  OutputRows out() { return {row(0), stride_}; }

  // Whether nothing outside of the columns was written.
  bool GuardsHold() const {
    for (int64_t i = 0; i < static_cast<int64_t>(data_.size()); ++i) {
      const int64_t at = i - 1;
      const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < columns_;
      if (!inside && Bits(data_[i]) != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr uint32_t kGuard = 0x7fc5a5a5;
  int64_t rows_, columns_, stride_;
  std::vector<float> data_;
};

// Calls op(worker) for every worker of a team of `count`, in random order.
template <typename Op>
void ForWorkers(int count, std::mt19937& rng, const Op& op) {
  std::vector<int> threads(count);
  std::iota(threads.begin(), threads.end(), 0);
  std::shuffle(threads.begin(), threads.end(), rng);
  for (const int thread : threads) op(Worker{thread, count});
}

inline float ScaleOf(const PackedMatrix& w, int64_t n, int64_t k) {
  return w.Scales(n / kPanel)[w.scale_blocks().BlockOf(k) * kPanel + n % kPanel];
}

// FP8: the code's value without its scale.
inline float Stored(const PackedMatrix& w, int64_t n, int64_t k) {
  const int64_t place = k * kPanel + n % kPanel;
  switch (w.type()) {
    case WeightType::kBf16:
      return w.Panel<BFloat16>(n / kPanel)[place].ToFloat();
    case WeightType::kFp32:
      return w.Panel<float>(n / kPanel)[place];
    case WeightType::kFp8:
      return w.Panel<Float8E4M3>(n / kPanel)[place].ToFloat();
  }
  return 0.0f;
}

inline float Element(const PackedMatrix& w, int64_t n, int64_t k) {
  return w.type() == WeightType::kFp8 ? Stored(w, n, k) * ScaleOf(w, n, k) : Stored(w, n, k);
}

// A code that is not NaN.
inline Float8E4M3 RandomCode(std::mt19937& rng) {
  const uint8_t bits = static_cast<uint8_t>(rng());
  return {(bits & 0x7f) == 0x7f ? uint8_t{0} : bits};
}

// Block sizes that fit nothing, the usual one, single elements, larger than any test's matrix; half
// of them of a part that begins inside a block.
inline ScaleBlocks RandomBlocks(std::mt19937& rng) {
  constexpr std::pair<int, int> kSizes[] = {{24, 20}, {128, 128}, {1, 1}, {5, 3}, {1000, 1000}};
  const auto [columns, depth] = kSizes[rng() % std::size(kSizes)];
  ScaleBlocks blocks{columns, depth};
  if (rng() % 2) {
    blocks.first_column = rng() % 100;
    blocks.first_depth = rng() % 100;
  }
  return blocks;
}

// The scale of a block of the whole matrix: any positive number, not only powers of two.
inline float ScaleOfBlock(uint32_t seed, int64_t column_block, int64_t depth_block) {
  const uint64_t hash = HashCombine(HashCombine(seed, column_block), depth_block);
  return static_cast<float>(hash >> 40) * 0x1p-30f + 1e-6f;
}

// FP8 gets random blocks unless they are given.
inline PackedMatrix RandomMatrix(int64_t columns, int64_t depth, WeightType type, std::mt19937& rng,
                                 ScaleBlocks blocks = {}) {
  const bool scaled = type == WeightType::kFp8;
  if (scaled && blocks.depth == 0) blocks = RandomBlocks(rng);
  PackedMatrix w(columns, depth, type, blocks);
  const uint32_t seed = static_cast<uint32_t>(rng());
  for (int64_t n = 0; n < columns; ++n) {
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t place = k * kPanel + n % kPanel;
      if (type == WeightType::kBf16) {
        w.Panel<BFloat16>(n / kPanel)[place] = BFloat16::FromFloat(RandomFloat(rng));
      } else if (type == WeightType::kFp32) {
        w.Panel<float>(n / kPanel)[place] = RandomFloat(rng);
      } else {
        w.Panel<Float8E4M3>(n / kPanel)[place] = RandomCode(rng);
        w.Scales(n / kPanel)[blocks.BlockOf(k) * kPanel + n % kPanel] =
            ScaleOfBlock(seed, (blocks.first_column + n) / blocks.columns,
                         (blocks.first_depth + k) / blocks.depth);
      }
    }
  }
  return w;
}

// The part of a whole matrix that a rank holds.
inline PackedMatrix PartOf(const PackedMatrix& w, Range columns, Range depth) {
  ScaleBlocks blocks = w.scale_blocks();
  blocks.first_column += columns.begin;
  blocks.first_depth += depth.begin;
  PackedMatrix part(columns.size(), depth.size(), w.type(),
                    w.type() == WeightType::kFp8 ? blocks : ScaleBlocks{});
  const int64_t size = static_cast<int64_t>(BytesOf(w.type()));
  for (int64_t n = 0; n < columns.size(); ++n) {
    const int64_t from = columns.begin + n;
    for (int64_t k = 0; k < depth.size(); ++k) {
      std::memcpy(part.Panel<std::byte>(0) + (n / kPanel * depth.size() + k) * kPanel * size +
                      n % kPanel * size,
                  w.Panel<std::byte>(0) +
                      (from / kPanel * w.depth() + depth.begin + k) * kPanel * size +
                      from % kPanel * size,
                  size);
      if (w.type() == WeightType::kFp8) {
        part.Scales(n / kPanel)[blocks.BlockOf(k) * kPanel + n % kPanel] =
            ScaleOf(w, from, depth.begin + k);
      }
    }
  }
  return part;
}

// One fused multiply-add after the other over k in [k_begin, k_end), from +0; for FP8 one such
// chain per scale block.
inline float Chain(const PackedMatrix& w, int64_t n, const float* x, int64_t k_begin,
                   int64_t k_end) {
  float sum = 0.0f, part = 0.0f;
  for (int64_t k = k_begin; k < k_end; ++k) {
    if (w.type() != WeightType::kFp8) {
      sum = std::fma(x[k], Stored(w, n, k), sum);
      continue;
    }
    part = std::fma(x[k], Stored(w, n, k) / 256, part);
    const int64_t next = w.scale_blocks().first_depth + k + 1;
    if (k + 1 == k_end || next % w.scale_blocks().depth == 0) {
      sum = std::fma(part, 256 * ScaleOf(w, n, k), sum);
      part = 0.0f;
    }
  }
  return sum;
}

// Binary tree over a power of two of parts.
inline float Tree(const std::vector<float>& parts, size_t begin, size_t count) {
  if (count == 1) return parts[begin];
  return Tree(parts, begin, count / 2) + Tree(parts, begin + count / 2, count / 2);
}
inline float Tree(const std::vector<float>& parts) {
  return Tree(parts, 0, parts.size());
}

}  // namespace tandem
