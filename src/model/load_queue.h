// Reads tensors and packs them on all cores: the second half of loading, after the matrices have
// been made. Knows neither names nor ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/pack.h"
#include "model/tensor_source.h"

namespace tandem {

// One tensor and everything that it fills; each tensor is read once, whatever the layout. Memory
// that is pointed to stays where it is until LoadQueue::Run returns.
struct TensorLoad {
  struct Target {
    PackPart part;
    PackedMatrix* matrix;
  };

  const TensorSource* source = nullptr;
  const TensorInfo* tensor = nullptr;  // of one or two dimensions
  const TensorInfo* scales = nullptr;  // of an FP8 tensor, else null
  std::vector<Target> targets;         // matrices, or
  std::span<float> floats;             // all elements widened, or
  std::span<std::byte> bytes;          // all elements as they are
};

class LoadQueue {
 public:
  void Add(TensorLoad load) { loads_.push_back(std::move(load)); }

  // Loads everything on `num_threads` threads, the caller included. `progress` (may be null) gets
  // the fraction of bytes done, rising, at most 20 times a second, from any of the threads but
  // never from two at once. Returns the first failure: of reading, an FP8 code that is NaN, or a
  // scale that is not finite, with file and tensor. Scratch is below 2 MiB per thread, or 16 rows
  // of a tensor where that is more.
  Status Run(int num_threads, const std::function<void(double)>& progress);

 private:
  std::vector<TensorLoad> loads_;
};

}  // namespace tandem
