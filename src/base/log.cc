#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "base/check.h"

namespace tandem {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = spdlog::stderr_color_mt("tandem");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum SpdLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void LogLine(LogLevel level, std::string_view line) {
  Logger().log(SpdLevel(level), spdlog::string_view_t(line.data(), line.size()));
}

void SetLogLevel(LogLevel level) {
  Logger().set_level(SpdLevel(level));
}

void CheckFailed(const char* file, int line, const char* condition) {
  LogError("{}:{}: CHECK failed: {}", file, line, condition);
  Logger().flush();
  std::abort();
}

}  // namespace tandem
