// Logging to standard error; the only way the server's layers print. The logging library's headers
// stay in log.cc.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes one line. Thread-safe.
void LogLine(LogLevel level, std::string_view line);

// Lines below `level` are dropped. The default is kInfo.
void SetLogLevel(LogLevel level);

template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tandem
