// What starting an engine would mean, without starting it: options with their defaults resolved,
// the sources of weights, and the memory budget. Loads nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/memory_budget.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "parallel/layout.h"

namespace tandem {

struct EnginePlan {
  ModelConfig config;
  Layout layout;
  EngineOptions options;  // all defaults resolved
  RowLimits limits;
  std::unique_ptr<TensorSource> weights;
  LoadOptions load;  // of the weights, without progress
  MemoryBudget budget;
  std::vector<std::string> notes;  // lines on what is off, and why
};

// InvalidArgument naming both bounds.
Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high);

// Where the plan's weights come from.
enum class PlanSource {
  kAsOptionsSay,
  kConfigIfNoFiles,  // counts a model of which only config.json is there
};

// Reads the model's config and the headers of its tensors. Errors: what files or options have
// wrong. A budget that does not fit is no error here.
Result<EnginePlan> PlanEngine(const std::string& model_folder, const EngineOptions& options,
                              PlanSource source = PlanSource::kAsOptionsSay);

}  // namespace tandem
