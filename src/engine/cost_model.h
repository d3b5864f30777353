// How many prompt rows a mixed step may bring so that it stays well below a second on this machine.
#pragma once

#include "engine/engine.h"
#include "model/config.h"
#include "ops/kernels.h"

namespace tandem {

// Multiply-adds of the matrix products for one row of the target, active experts only.
int64_t MultiplyAddsPerRow(const ModelConfig& config);

// Measures the matrix kernel of the instruction set in use for a few milliseconds and returns the
// default of --max-step-rows: at least one row per replica, at most what all replicas' chunks
// bring.
int DefaultMaxStepRows(const ModelConfig& config, const EngineOptions& options,
                       const Kernels& kernels, int busy_threads);

}  // namespace tandem
