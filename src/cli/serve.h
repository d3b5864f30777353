// `tandem serve`: listens, loads, serves until SIGINT or SIGTERM.
#pragma once

#include "cli/command_line.h"

namespace tandem {

// Returns the process's exit code. REQUIRES: called before any other thread runs.
int RunServe(const CommandLine& line);

}  // namespace tandem
