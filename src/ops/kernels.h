// The operations that are built once per instruction set, as a table of functions. All tables give
// equal bits (README.md); what does not use vectors is a plain function in its own header.
#pragma once

#include "ops/attention.h"
#include "ops/experts.h"
#include "ops/isa.h"
#include "ops/matmul.h"

namespace tandem {

// Functions without state: called once per worker of a team, each does that worker's share.
struct Kernels {
  // ---- Products ----

  // y[rows][columns] = x[rows][depth] W^T.
  void (*matmul)(const PackedMatrix& w, InputRows x, int64_t rows, OutputRows y,
                 const Worker& worker);

  // One product per head, in one operation: head h reads x + h * x_head floats and writes y + h *
  // y_head. All heads have equal shapes.
  void (*matmul_heads)(std::span<const PackedMatrix> w, InputRows x, int64_t x_head, int64_t rows,
                       OutputRows y, int64_t y_head, const Worker& worker);

  // K is cut at bounds[0] = 0 <= ... <= bounds[S] = depth, S a power of two up to 16; each segment
  // has a chain of its own from +0, and the segments are added in a binary tree (DESIGN 7). An
  // empty segment adds +0.
  void (*matmul_segments)(const PackedMatrix& w, std::span<const int32_t> bounds, InputRows x,
                          int64_t rows, OutputRows y, const Worker& worker);

  // y = silu(x G^T) * (x U^T): the first half of a gated MLP. Shapes of gate and up are equal.
  void (*gate_up)(const PackedMatrix& gate, const PackedMatrix& up, InputRows x, int64_t rows,
                  OutputRows y, const Worker& worker);

  // ---- Experts ----

  // activations[pair] = silu(gate x) * (up x) for every pair of every local expert; x holds all
  // rows.
  void (*experts_gate_up)(std::span<const ExpertWeights> experts, const ExpertGroups& groups,
                          InputRows x, OutputRows activations, const Worker& worker);

  // y[row] = sum over the row's local experts of weight * down(activation): experts ascending
  // inside a segment, one chain from +0 each; segments, expert ranges [bounds[s], bounds[s+1]) in
  // local numbers, added in a binary tree. All `rows` rows of `columns` (hidden) are written.
  void (*experts_down)(std::span<const ExpertWeights> experts, std::span<const int32_t> bounds,
                       const ExpertGroups& groups, OutputRows activations, int64_t rows,
                       int64_t columns, OutputRows y, const Worker& worker);

  // ---- Attention ----

  // For each row and head: out[row][head][kv_lora_rank] = softmax(scale * (q_latent . c + q_rope .
  // k_rope)) c. Tiles of kAttentionTile keys at absolute positions are computed alone, each with
  // its own maximum, and merged by one left fold. q_latent[row] is [heads][kv_lora_rank];
  // q_rope[row] points at head 0's rotary part, heads q_rope_head floats apart.
  void (*latent_attention)(const AttentionShape& shape, const LatentCache& cache, int32_t first_key,
                           const AttentionRow* rows, int64_t num_rows, InputRows q_latent,
                           InputRows q_rope, int64_t q_rope_head, OutputRows out,
                           const Worker& worker);

  // ---- Single rows ----

  // y = x * rsqrt(mean(x^2) + eps) * weight for one row of `size`. The sum of squares runs in 16
  // lanes, added in a fixed tree. y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t size, float eps, float* y);

  // x[row] += tree sum over `parts` of pieces[p][row] (one per rank: 1, 2, 4, 8 or 16), and, where
  // `second` columns follow the first `size` in each piece, x[row] += (first sum + second sum). Row
  // r of part p starts at pieces[p] + r * stride.
  void (*add_pieces)(std::span<const float* const> pieces, int64_t stride, int64_t size,
                     bool two_sums, int64_t row, float* x);
};

// REQUIRES: IsSupported(isa).
const Kernels& KernelsFor(Isa isa);

}  // namespace tandem
