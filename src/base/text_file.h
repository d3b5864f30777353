// Reading a small text file of a model folder whole. Not for tensors.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

// The file's bytes. Errors: kNotFound if there is none that can be opened, kInvalidArgument if it is
// no regular file, longer than `max_bytes`, or cannot be read.
Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes);

// "a, b, c" or "a, b, and 7 more": lists for error messages.
std::string ListSome(const std::vector<std::string>& names);

// `text` in quotes, without control or non-ASCII characters, cut when long: names from files may be
// hostile.
std::string Quoted(const std::string& text);

}  // namespace tandem
