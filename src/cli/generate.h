// `tandem generate`: requests from the command line or a file, answers to standard output. No HTTP.
#pragma once

#include "cli/command_line.h"

namespace tandem {

// Returns the process's exit code: 0, 1 when the model or a request failed, 2 for wrong input.
int RunGenerate(const CommandLine& line);

}  // namespace tandem
