// Sinks that collect what the C interface of ffi/ sends. Only for the .cc files of src/text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

// A TandemTextSink; `to` is a std::string.
inline void AppendText(void* to, const char* data, size_t size) noexcept {
  static_cast<std::string*>(to)->append(data, size);
}

// A TandemIdSink; `to` is a std::vector<int32_t>.
inline void AppendIds(void* to, const int32_t* ids, size_t count) noexcept {
  auto* list = static_cast<std::vector<int32_t>*>(to);
  list->insert(list->end(), ids, ids + count);
}

}  // namespace tandem
