// Made-up weights of a config at any size, without files: for benchmarks and for counting. Same
// bits whatever the layout, the threads and the order of reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tensor_source.h"

namespace tandem {

// Every tensor that is asked for exists, in the shape asked for, in the format that published
// checkpoints of such a config have (MODEL.md 4): projections FP8 if the config has a
// quantization, everything else BF16, biases and scales F32. MTP modules have no embedding and no
// head of their own. Element i of a tensor is a function of (seed, name, i): matrices are uniform
// with variance 1 / inputs, so that activations keep their size, embeddings with variance 1; norms
// are 1, biases 0. The scales of FP8 blocks differ from block to block.
class DummyTensors : public TensorSource {
 public:
  DummyTensors(const ModelConfig& config, uint64_t seed);

  bool Has(const std::string& name) const override;
  bool HasPrefix(const std::string&) const override { return true; }
  Status Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const override;

 protected:
  Entry* Find(const std::string& name, const std::vector<int64_t>& shape,
              TensorFormats formats) override;

 private:
  const QuantizationConfig quantization_;
  const uint64_t seed_;
};

}  // namespace tandem
