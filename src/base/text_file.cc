#include "base/text_file.h"

#include <filesystem>
#include <fstream>

namespace tandem {

Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  // Looked at before it is opened: opening a pipe waits for whoever writes to it.
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::directory) {
    return InvalidArgument(path + ": is a folder");
  }
  if (std::filesystem::exists(std::filesystem::file_status(kind)) &&
      kind != std::filesystem::file_type::regular) {
    return InvalidArgument(path + ": is no regular file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(path + ": cannot be opened");
  const auto size = std::filesystem::file_size(path, error);
  if (error) return InvalidArgument(path + ": " + error.message());
  if (size > max_bytes) {
    return InvalidArgument(path + ": has " + std::to_string(size) + " bytes, more than the " +
                           std::to_string(max_bytes) + " that such a file may have");
  }
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return InvalidArgument(path + ": cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));  // it may have shrunk meanwhile
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
