// Operations on rows that need neither a weights matrix nor vectors: embedding look-up, router
// choice. RMSNorm and sums of pieces are in ops/kernels.h.
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

// What a router's logits become: 1 / (1 + exp(-x)) (V3), or a softmax over all experts (V2).
enum class RouterScoring { kSigmoid, kSoftmax };

// What a group of experts is worth: the sum of its two best biased scores (V3's noaux_tc), or its
// best score (V2's group_limited_greedy).
enum class GroupScore { kTwoBest, kBest };

// How one row's experts are chosen and weighed from its router logits (MODEL.md 2.4). V3 is the
// default; V2's greedy has one group.
struct RouterChoice {
  int num_experts = 0;
  int num_groups = 1;
  int top_groups = 1;
  int top_k = 0;
  RouterScoring scoring = RouterScoring::kSigmoid;
  GroupScore group_score = GroupScore::kTwoBest;
  bool normalize = true;              // weights are divided by their sum + 1e-20
  bool scale_after_normalize = true;  // false (V2): normalized weights are not scaled
  float scale = 1.0f;
  const float* bias =
      nullptr;  // e_score_correction_bias [num_experts] or null: for the choice only
};

// ids[top_k] in order of falling biased score (ties: lower id first) and their weights, from
// un-biased scores. In FP32; the softmax takes exp(x - maximum) and adds experts ascending.
void ChooseExperts(const RouterChoice& choice, const float* logits, int32_t* ids, float* weights);

}  // namespace tandem
