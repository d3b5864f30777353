// Where a process's memory will go, counted before anything is loaded: weights, KV pools,
// workspace, and what is left. Decides the size of the KV pools; allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "model/weight_plan.h"
#include "model/workspace.h"
#include "parallel/layout.h"

namespace tandem {

struct MemoryBudget {
  WeightPlan weights;
  WorkspaceBytes workspace;  // with the ranks' sampling rows
  int num_pools = 0;         // one per replica, or per rank where everything travels
  LatentFormat kv_format = LatentFormat::kBf16;
  int64_t slot_bytes = 0;         // of one token in one layer
  int64_t token_bytes = 0;        // of one token in one pool: all layers, the draft layer included
  int64_t draft_token_bytes = 0;  // the draft layer's part of it
  int64_t num_blocks = 0;         // of each pool; 0: not even one fits
  int64_t block_size = 0;
  int64_t process_bytes = 0;  // held already when the budget was made
  int64_t machine_bytes = 0;
  double memory_fraction = 0;  // of the machine's, for all of this

  int64_t kv_tokens() const { return num_blocks * block_size; }  // of each pool
  int64_t kv_bytes() const { return num_pools * kv_tokens() * token_bytes; }
  int64_t total_bytes() const {
    return process_bytes + weights.total_bytes() + workspace.total() + kv_bytes();
  }
  bool fits() const { return num_blocks > 0 && total_bytes() <= machine_bytes; }
  // What rank r holds alone, its share of its pool included.
  int64_t rank_bytes(const Layout& layout, int rank) const;

  // Several lines for people: weights by group, each rank, KV, workspace, the sum and what is left.
  std::string Text(const Layout& layout) const;
  // One line: the sum, and which flags make it smaller.
  std::string WhyNot() const;
};

// REQUIRES: `options` has its defaults resolved. max_total_tokens, where given, is the pool's size
// whatever memory_fraction says; a pool is never larger than sequences x context.
MemoryBudget PlanMemory(const ModelConfig& config, const Layout& layout,
                        const EngineOptions& options, const RowLimits& limits,
                        const WeightPlan& weights, int64_t machine_bytes, int64_t process_bytes);

}  // namespace tandem
