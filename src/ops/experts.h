// The routed experts of one rank: rows grouped by expert, so that each expert's weights are read
// once per step, and the rank's part of the routed sum. No router (ops/rows.h) and no shared
// expert (a plain GateUp + MatmulSegments).
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

// activations[pair] = silu(gate x) * (up x) for every pair of every local expert; x holds all rows.
void ExpertsGateUp(std::span<const ExpertWeights> experts, const ExpertGroups& groups, InputRows x,
                   OutputRows activations, const Worker& worker);

// y[row] = sum over the row's local experts of weight * down(activation): experts ascending inside
// a segment, one chain from +0 each; segments, expert ranges [bounds[s], bounds[s+1]) in local
// numbers, added in a binary tree. All `rows` rows of `columns` (hidden) are written.
void ExpertsDown(std::span<const ExpertWeights> experts, std::span<const int32_t> bounds,
                 const ExpertGroups& groups, OutputRows activations, int64_t rows, int64_t columns,
                 OutputRows y, const Worker& worker);

}  // namespace tandem
