#include "base/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

namespace tandem {
namespace {

std::string ReadLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int64_t ParseMemoryLimit(const std::string& text) {
  int64_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc() || limit <= 0) return std::numeric_limits<int64_t>::max();
  return limit;
}

int64_t MachineMemory() {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
  // Version 2 and version 1 of control groups, as a container sees its own.
  const int64_t limit =
      std::min(ParseMemoryLimit(ReadLine("/sys/fs/cgroup/memory.max")),
               ParseMemoryLimit(ReadLine("/sys/fs/cgroup/memory/memory.limit_in_bytes")));
  return std::min(physical, limit);
}

void TouchPages(std::byte* data, size_t bytes) {
  constexpr size_t kPage = 4096;  // the smallest; touching a huge page more than once does no harm
  for (size_t i = 0; i < bytes; i += kPage) {
    volatile std::byte* page = data + i;
    *page = *page;
  }
}

int64_t ResidentMemory() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * int64_t{sysconf(_SC_PAGE_SIZE)};
}

}  // namespace tandem
