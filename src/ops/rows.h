// Operations on rows that need no weights matrix: embedding look-up, RMSNorm, sums of pieces,
// router choice.
#pragma once

#include <cstdint>
#include <span>

#include "ops/matmul.h"

namespace tandem {

// Part of `rows` rows that a worker does.
inline Range RowsOfWorker(int64_t rows, const Worker& worker) {
  return Share(rows, worker.thread, worker.num_threads);
}

// A table of embeddings as the checkpoint stores it: [rows][columns], BF16 or FP32.
struct EmbeddingTable {
  Buffer<std::byte> data;
  WeightType type = WeightType::kBf16;
  int64_t columns = 0;

  void Read(int64_t row, float* out) const;
};

// y = x * rsqrt(mean(x^2) + eps) * weight for one row of `size`. The sum of squares runs in 16
// lanes, added in a fixed tree. y may be x.
void RmsNorm(const float* x, const float* weight, int64_t size, float eps, float* y);

// x[row] += tree sum over `parts` of pieces[p][row] (one per rank: 1, 2, 4, 8 or 16), and, where
// `second` columns follow the first `size` in each piece, x[row] += (first sum + second sum). Row r
// of part p starts at pieces[p] + r * stride.
void AddPieces(std::span<const float* const> pieces, int64_t stride, int64_t size, bool two_sums,
               int64_t row, float* x);

// DeepSeek-V3's noaux_tc choice (MODEL.md 2.4) from router logits [num_experts] of one row.
struct RouterChoice {
  int num_experts = 0;
  int num_groups = 1;
  int top_groups = 1;
  int top_k = 0;
  bool normalize = true;
  float scale = 1.0f;
  const float* bias =
      nullptr;  // e_score_correction_bias [num_experts]: takes part in the choice only
};

// ids[top_k] in order of falling biased score (ties: lower id first) and their weights, from
// un-biased sigmoids.
void ChooseExperts(const RouterChoice& choice, const float* logits, int32_t* ids, float* weights);

}  // namespace tandem
