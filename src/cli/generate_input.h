// The requests of one `tandem generate`, from its flags or the lines of its input file. Text only;
// see RunGenerate.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command_line.h"

namespace tandem {

struct InputLine {
  std::string where;  // "input line 3", or the flag's name: for messages
  std::string json;   // a JSON object; what flags said is filled in where the line says nothing
};

// Errors: a file that can't be read, or a line that is no JSON object, by its number.
Result<std::vector<InputLine>> ReadInput(const GenerateFlags& flags);

}  // namespace tandem
