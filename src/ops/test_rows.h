// Inputs and scalar references for tests of src/ops: rows with guards around them, random matrices,
// the documented orders of sums written out one number at a time. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

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

inline float Element(const PackedMatrix& w, int64_t n, int64_t k) {
  const int64_t place = k * kPanel + n % kPanel;
  return w.type() == WeightType::kBf16 ? w.Panel<BFloat16>(n / kPanel)[place].ToFloat()
                                       : w.Panel<float>(n / kPanel)[place];
}

inline PackedMatrix RandomMatrix(int64_t columns, int64_t depth, WeightType type,
                                 std::mt19937& rng) {
  PackedMatrix w(columns, depth, type);
  for (int64_t n = 0; n < columns; ++n) {
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t place = k * kPanel + n % kPanel;
      if (type == WeightType::kBf16) {
        w.Panel<BFloat16>(n / kPanel)[place] = BFloat16::FromFloat(RandomFloat(rng));
      } else {
        w.Panel<float>(n / kPanel)[place] = RandomFloat(rng);
      }
    }
  }
  return w;
}

// One fused multiply-add after the other over k in [k_begin, k_end), from +0.
inline float Chain(const PackedMatrix& w, int64_t n, const float* x, int64_t k_begin,
                   int64_t k_end) {
  float sum = 0.0f;
  for (int64_t k = k_begin; k < k_end; ++k) sum = std::fma(x[k], Element(w, n, k), sum);
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
