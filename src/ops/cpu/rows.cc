#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "base/check.h"
#include "ops/cpu/simd.h"

namespace tandem::TANDEM_ISA {
namespace {

// One piece per rank, and ranks share 16 segments of sums (DESIGN 7).
constexpr size_t kMaxPieces = 16;

float TreeOfLanes(float* lanes) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

float SumOfSquares(const float* x, int64_t size) {
  alignas(64) float lanes[kLanes];
  Vec16 sum = Vec16::Zero();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vec16 v = Vec16::Load(x + i);
    sum = Fma(v, v, sum);
  }
  sum.Store(lanes);
  for (int64_t lane = 0; i < size; ++i, ++lane) lanes[lane] = std::fma(x[i], x[i], lanes[lane]);
  return TreeOfLanes(lanes);
}

// Binary tree over the first n columns at `at` of every piece; the other lanes are zeros.
Vec16 TreeOfPieces(std::span<const float* const> pieces, int64_t at, int64_t n) {
  Vec16 parts[kMaxPieces];
  for (size_t p = 0; p < pieces.size(); ++p) parts[p] = Vec16::Load(pieces[p] + at, n);
  for (size_t count = pieces.size() / 2; count > 0; count /= 2) {
    for (size_t i = 0; i < count; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
  }
  return parts[0];
}

}  // namespace

void RmsNorm(const float* x, const float* weight, int64_t size, float eps, float* y) {
  const float mean = SumOfSquares(x, size) / static_cast<float>(size);
  const float scale = 1.0f / std::sqrt(mean + eps);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    (Vec16::Load(x + i) * Vec16::Broadcast(scale) * Vec16::Load(weight + i)).Store(y + i);
  }
  for (; i < size; ++i) y[i] = x[i] * scale * weight[i];
}

void AddPieces(std::span<const float* const> pieces, int64_t stride, int64_t size, bool two_sums,
               int64_t row, float* x) {
  CHECK(std::has_single_bit(pieces.size()) && pieces.size() <= kMaxPieces);
  const int64_t begin = row * stride;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = std::min(kLanes, size - i);
    Vec16 sum = TreeOfPieces(pieces, begin + i, n);
    if (two_sums) sum = sum + TreeOfPieces(pieces, begin + size + i, n);
    (Vec16::Load(x + i, n) + sum).Store(x + i, n);
  }
}

}  // namespace tandem::TANDEM_ISA
