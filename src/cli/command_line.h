// The command line as a whole: which command, with which flags. Parsing only; nothing runs here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/engine_flags.h"

namespace tandem {

enum class Command { kPrint, kServe, kGenerate, kInspect };

struct ServeFlags {
  std::string host = "127.0.0.1";
  int port = 8000;
};

// Sampling flags stay text of JSON values, so that they and the fields of input lines are read by
// the same code.
struct GenerateFlags {
  std::optional<std::string> prompt;
  std::optional<std::string> chat;
  std::string input;            // a file of JSON lines
  std::string sampling = "{}";  // a JSON object of the fields given as flags
  bool json = false;
  std::string trace_rows;  // a file for the hash of every operation's rows
};

struct InspectFlags {
  bool json = false;
};

struct CommandLine {
  Command command = Command::kPrint;
  std::string text;  // kPrint: help or version, for standard output
  EngineSetup engine;
  EngineFlags engine_flags;
  ServeFlags serve;
  GenerateFlags generate;
  InspectFlags inspect;
};

// Errors (kInvalidArgument): one line on what is wrong.
Result<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace tandem
