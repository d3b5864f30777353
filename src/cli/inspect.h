// `tandem inspect`: what a model is and what serving it would take, without loading it.
#pragma once

#include <string>

#include "cli/command_line.h"
#include "engine/engine_plan.h"

namespace tandem {

// The report for people, and the same as one JSON object.
std::string InspectText(const EnginePlan& plan);
std::string InspectJson(const EnginePlan& plan);

// Prints it. Exit codes: 0, also if the model does not fit here; 1 if it cannot be read.
int RunInspect(const CommandLine& line);

}  // namespace tandem
