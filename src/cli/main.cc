// The program: one command per run. Wrong flags are one line on standard error and exit code 2.
#include <cstdio>

#include "cli/command_line.h"
#include "cli/generate.h"
#include "cli/inspect.h"
#include "cli/serve.h"

int main(int argc, char** argv) {
  const auto line = tandem::ParseCommandLine(argc, argv);
  if (!line.ok()) {
    std::fprintf(stderr, "tandem: %s\n", line.status().message().c_str());
    return 2;
  }
  switch (line->command) {
    case tandem::Command::kServe:
      return tandem::RunServe(*line);
    case tandem::Command::kGenerate:
      return tandem::RunGenerate(*line);
    case tandem::Command::kInspect:
      return tandem::RunInspect(*line);
    case tandem::Command::kPrint:
      break;
  }
  std::fputs(line->text.c_str(), stdout);
  return 0;
}
