// CHECK: stops the process on a bug of our own, naming it. Never for what a client or a file can
// cause.
#pragma once

namespace tandem {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace tandem

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      ::tandem::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (0)
