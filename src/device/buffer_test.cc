#include "device/buffer.h"

#include <gtest/gtest.h>

#include <utility>

namespace tandem {
namespace {

TEST(Buffer, IsAlignedAndZeroed) {
  for (const size_t count : {1, 3, 64, 1000, 100'000}) {
    const Buffer<float> buffer(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
    EXPECT_EQ(buffer.bytes(), count * sizeof(float));
    for (const float value : buffer.span()) ASSERT_EQ(value, 0.0f);
    buffer[count - 1] = 2.0f;
    EXPECT_EQ(buffer.data()[count - 1], 2.0f);
  }
}

TEST(Buffer, EmptyOnesHaveNoMemory) {
  EXPECT_EQ(Buffer<int>().data(), nullptr);
  EXPECT_EQ(Buffer<int>(0).data(), nullptr);
  EXPECT_TRUE(Buffer<int>(0).span().empty());
}

TEST(Buffer, MovingKeepsTheAddress) {
  Buffer<int> a(10);
  a[3] = 7;
  const int* address = a.data();
  const Buffer<int> b = std::move(a);
  EXPECT_EQ(b.data(), address);
  EXPECT_EQ(b[3], 7);
}

}  // namespace
}  // namespace tandem
