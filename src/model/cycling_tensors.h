// Made-up weights whose text is known and whose drafts are right with a given probability, at any
// size: for measuring speculation without a trained model.
#pragma once

#include "model/dummy_tensors.h"

namespace tandem {

// Attention and MLPs have the work of any model and add zero (o_proj and down_proj are zeros), so a
// token's logits depend on that token alone: row Successor(t) of the head is t's embedding. MTP
// modules pass the embedding through and share the head: they draft the same successor, except
// after `1 - acceptance` of all tokens, drawn by hash, whose rows of the modules' embedding hold
// another token's.
class CyclingTensors : public DummyTensors {
 public:
  // REQUIRES: 0 <= acceptance <= 1.
  CyclingTensors(const ModelConfig& config, uint64_t seed, double acceptance);

  // One cycle through the vocabulary.
  static int64_t Successor(int64_t token, int64_t vocab_size);
  // Whether a draft after `token` is right.
  bool IsAccepted(int64_t token) const;

  bool Has(const std::string& name) const override;
  Status Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const override;

 private:
  const int64_t vocab_size_, hidden_size_;
  const uint64_t seed_;
  const double acceptance_;
  TensorInfo embedding_;  // the target's
};

}  // namespace tandem
