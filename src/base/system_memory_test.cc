#include "base/system_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

namespace tandem {
namespace {

TEST(SystemMemory, LimitsOfControlGroups) {
  EXPECT_EQ(ParseMemoryLimit("1073741824\n"), 1073741824);
  for (const char* none : {"max", "", "0", "-5", "99999999999999999999999"}) {
    EXPECT_EQ(ParseMemoryLimit(none), std::numeric_limits<int64_t>::max()) << none;
  }
}

TEST(SystemMemory, TouchedPagesAreHeldAndUnchanged) {
  EXPECT_GT(MachineMemory(), 64 << 20);
  constexpr int64_t kBytes = 64 << 20;
  const int64_t before = ResidentMemory();
  std::byte* memory = static_cast<std::byte*>(std::calloc(kBytes, 1));
  memory[5] = std::byte{7};
  TouchPages(memory, kBytes);
  EXPECT_GT(ResidentMemory(), before + kBytes / 10 * 9);
  EXPECT_EQ(memory[5], std::byte{7});
  std::free(memory);
}

}  // namespace
}  // namespace tandem
