// Windows into a running engine for tests and traces. They see what a step did and change nothing.
#pragma once

#include <functional>
#include <vector>

#include "device/program.h"
#include "engine/step_plan.h"
#include "parallel/communicator.h"

namespace tandem {

// One step as one rank saw it.
struct StepObservation {
  int rank = 0;
  int64_t step = 0;
  GroupPlan group;
  StepPlan plan;  // what the rank's replica brought, after truncation
  size_t num_operations = 0;
  size_t num_collectives = 0;                 // of the program
  std::vector<CollectiveRecord> collectives;  // since the last step, if trace_collectives
  int32_t blocks_in_use = 0;                  // of the replica, after the commit; leaders only
};

struct EngineHooks {
  // Called on each rank's own thread after each step; must be thread-safe.
  std::function<void(const StepObservation&)> on_step;
  bool trace_collectives = false;
  // Receives every operation's rows from all ranks' threads; must be thread-safe and outlive the
  // engine.
  RowTracer* row_tracer = nullptr;
};

}  // namespace tandem
