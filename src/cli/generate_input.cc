#include "cli/generate_input.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "server/json_fields.h"

namespace tandem {
namespace {

// A field of `given` wins over that of `flags`.
std::string Merge(Json flags, const Json& given) {
  for (const auto& [name, value] : given.items()) flags[name] = value;
  return flags.dump();
}

Result<std::vector<InputLine>> ReadLines(const std::string& file, const Json& flags) {
  std::ifstream stream(file);
  if (!stream) {
    return InvalidArgument(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
  }
  std::vector<InputLine> lines;
  std::string text;
  for (int64_t number = 1; std::getline(stream, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("input line {}", number);
    const auto parsed = ParseJson(text);
    if (!parsed.ok()) return InvalidArgument(where + ": " + parsed.status().message());
    if (!parsed->is_object()) {
      return InvalidArgument(
          fmt::format("{}: it must be a JSON object, not {}", where, JsonKind(*parsed)));
    }
    lines.push_back({where, Merge(flags, *parsed)});
  }
  if (lines.empty()) return InvalidArgument(fmt::format("{} has no lines", file));
  return lines;
}

}  // namespace

Result<std::vector<InputLine>> ReadInput(const GenerateFlags& flags) {
  const auto sampling = ParseJson(flags.sampling);
  CHECK(sampling.ok());
  try {
    if (!flags.input.empty()) return ReadLines(flags.input, *sampling);
    if (flags.prompt) {
      return std::vector<InputLine>{{"--prompt", Merge(*sampling, {{"prompt", *flags.prompt}})}};
    }
    const Json message = {{"role", "user"}, {"content", *flags.chat}};
    return std::vector<InputLine>{
        {"--chat", Merge(*sampling, {{"messages", Json::array({message})}})}};
  } catch (const Json::type_error&) {
    return InvalidArgument("the text is not valid UTF-8");
  }
}

}  // namespace tandem
