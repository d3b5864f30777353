// The inner kernel of all matrix products: some rows times one packed panel, in registers. Only for
// sources in ops/cpu.
#pragma once

#include <algorithm>

#include "ops/cpu/simd.h"
#include "ops/matmul.h"

namespace tandem::TANDEM_ISA {

// sum[i] += chain over k in [k_begin, k_end) of x[i][k] * panel[k], k ascending. Not inlined: the
// loop needs every register, which callers' constants would take.
template <int R, typename W>
[[gnu::noinline]] void PanelChain(const W* panel, int64_t k_begin, int64_t k_end,
                                  const float* const* x, Vec16* sum) {
  Vec16 acc[R];
  for (int i = 0; i < R; ++i) acc[i] = sum[i];
  for (int64_t k = k_begin; k < k_end; ++k) {
    const Vec16 w = Vec16::Load(panel + k * kPanel);
    for (int i = 0; i < R; ++i) acc[i] = Fma(Vec16::Broadcast(x[i][k]), w, acc[i]);
  }
  for (int i = 0; i < R; ++i) sum[i] = acc[i];
}

// The same for a number of rows known only at run time, 1..kTileRows.
template <int R = kTileRows, typename W>
inline void PanelChain(int rows, const W* panel, int64_t k_begin, int64_t k_end,
                       const float* const* x, Vec16* sum) {
  if (rows == R) return PanelChain<R>(panel, k_begin, k_end, x, sum);
  if constexpr (R > 1) PanelChain<R - 1>(rows, panel, k_begin, k_end, x, sum);
}

// The same for FP8, by the definition in matmul.h.
inline void ScaledPanelChain(const PackedMatrix& w, int64_t panel, int rows, int64_t k_begin,
                             int64_t k_end, const float* const* x, Vec16* sum) {
  const ScaleBlocks& blocks = w.scale_blocks();
  const Float8E4M3* codes = w.Panel<Float8E4M3>(panel);
  for (int64_t k = k_begin; k < k_end;) {
    const int64_t block = blocks.BlockOf(k);
    const int64_t end = std::min(blocks.Begin(block + 1), k_end);
    Vec16 part[kTileRows];
    for (int i = 0; i < rows; ++i) part[i] = Vec16::Zero();
    PanelChain(rows, codes, k, end, x, part);
    const Vec16 scale =
        Vec16::Load(w.Scales(panel) + block * kPanel) * Vec16::Broadcast(kCodeDivisor);
    for (int i = 0; i < rows; ++i) sum[i] = Fma(part[i], scale, sum[i]);
    k = end;
  }
}

// Dispatches on the weight type and the rows: sum[i], +0 at first, becomes the chain over [k_begin,
// k_end) of x[i] . panel.
inline void PanelChain(const PackedMatrix& w, int64_t panel, int rows, int64_t k_begin,
                       int64_t k_end, const float* const* x, Vec16* sum) {
  switch (w.type()) {
    case WeightType::kBf16:
      return PanelChain(rows, w.Panel<BFloat16>(panel), k_begin, k_end, x, sum);
    case WeightType::kFp32:
      return PanelChain(rows, w.Panel<float>(panel), k_begin, k_end, x, sum);
    case WeightType::kFp8:
      return ScaledPanelChain(w, panel, rows, k_begin, k_end, x, sum);
  }
}

// Adds S = 2^n parts in a binary tree as they come, in order: ((p0+p1)+(p2+p3))+...
template <typename T>
class TreeSum {
 public:
  void Push(T part) {
    int level = 0;
    for (int index = count_++; index & 1; index >>= 1) part = stack_[level++] + part;
    stack_[level] = part;
    top_ = level;
  }
  // REQUIRES: a power of two of parts have been pushed.
  T Total() const { return stack_[top_]; }

 private:
  T stack_[6] = {};
  int count_ = 0;
  int top_ = 0;
};

}  // namespace tandem::TANDEM_ISA
