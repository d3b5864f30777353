// What the passes of all ranks will allocate, counted from sizes alone, before anything is loaded.
// Neither weights nor KV cache.
#pragma once

#include <cstdint>
#include <vector>

#include "model/rank_model.h"

namespace tandem {

struct WorkspaceBytes {
  std::vector<int64_t> rank;  // what only this rank uses
  int64_t shared = 0;         // gathered rows of ranks that share memory

  int64_t total() const;
};

// Equals what RankModel's constructors allocate together, but for upper bounds: of MLP columns in
// models with FP8 tensors, and of a copying communicator's in- and outboxes.
WorkspaceBytes CountWorkspace(const ModelConfig& config, const Layout& layout,
                              const RowLimits& limits, LatentFormat format, bool with_mtp,
                              bool copying);

}  // namespace tandem
