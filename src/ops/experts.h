// The routed experts of one rank: their weights, and rows grouped by expert, so that each expert's
// weights are read once per step. The products are in ops/kernels.h, the router in ops/rows.h; a
// shared expert is a plain gated MLP.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/matmul.h"

namespace tandem {

struct ExpertWeights {
  PackedMatrix gate, up;  // [moe_intermediate, hidden]
  PackedMatrix down;      // [hidden, moe_intermediate]
};

// Which rows chose which of the rank's experts. Pairs (row, weight) of one expert are adjacent,
// rows ascending.
struct ExpertGroups {
  std::vector<int32_t> begin;  // [local experts + 1] into rows and weights
  std::vector<int32_t> rows;
  std::vector<float> weights;

  void Reserve(int64_t num_local_experts, int64_t max_pairs);
};

// Groups the choices of all rows: ids and weights of row i are at ids + i * stride, weights + i *
// stride, top_k each; id -1 (a masked row) reaches no expert. Keeps the experts [local.begin,
// local.end). Run by one thread.
void GroupByExpert(const int32_t* ids, const float* weights, int64_t stride, int64_t rows,
                   int top_k, Range local, ExpertGroups& groups);

}  // namespace tandem
