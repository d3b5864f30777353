#include "model/text_file.h"

#include <filesystem>
#include <fstream>

namespace tandem {

Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return NotFound(path + ": no such file");
  const auto size = std::filesystem::file_size(path, error);
  if (error) return InvalidArgument(path + ": " + error.message());
  if (size > max_bytes) {
    return InvalidArgument(path + ": " + std::to_string(size) + " bytes, more than the " +
                           std::to_string(max_bytes) + " that such a file may have");
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    return InvalidArgument(path + ": cannot be read");
  }
  return text;
}

std::string ListSome(const std::vector<std::string>& names) {
  // A screenful; one wrong config field makes hundreds of tensors wrong in the same way.
  constexpr size_t kMost = 20;
  std::string list;
  for (size_t i = 0; i < names.size() && i < kMost; ++i) list += (i ? ", " : "") + names[i];
  if (names.size() > kMost) list += ", and " + std::to_string(names.size() - kMost) + " more";
  return list;
}

std::string Quoted(const std::string& text) {
  // Longer than any tensor's name of the models that we know (85), so real names are never cut.
  constexpr size_t kLongest = 120;
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size() && i < kLongest; ++i) {
    quoted += text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
  }
  return quoted + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace tandem
