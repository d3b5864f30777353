// The input file of `tandem generate`.
#include <nlohmann/json.hpp>

#include "cli/generate_input.h"
#include "memory_file.h"
#include "server/json_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::FuzzFolder folder;
  folder.Write("in.jsonl", data, size);
  tandem::GenerateFlags flags;
  flags.input = folder.path() + "/in.jsonl";
  flags.sampling = R"({"temperature":0.5})";
  const auto lines = tandem::ReadInput(flags);
  if (!lines.ok()) return 0;
  for (const tandem::InputLine& line : *lines) {
    if (!tandem::ParseJson(line.json).ok()) std::abort();
  }
  return 0;
}
