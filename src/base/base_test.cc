#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/hash.h"
#include "base/numeric.h"
#include "base/status.h"

namespace tandem {
namespace {

Result<int> Half(int x) {
  if (x % 2) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(Status, ErrorsTravelThroughResults) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(7).status().code(), StatusCode::kInvalidArgument);
}

TEST(Numeric, BFloat16RoundsToNearestEvenAndKeepsSpecials) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    if (std::isnan(x.ToFloat())) {
      EXPECT_TRUE(std::isnan(BFloat16::FromFloat(x.ToFloat()).ToFloat()));
    } else {
      EXPECT_EQ(BFloat16::FromFloat(x.ToFloat()).bits, bits);
    }
  }
  EXPECT_EQ(BFloat16::FromFloat(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(BFloat16::FromFloat(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(BFloat16::FromFloat(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(BFloat16::FromFloat(std::numeric_limits<float>::max()).bits, 0x7f80);
}

TEST(Numeric, SharesCoverEverythingOnce) {
  for (int total = 0; total < 40; ++total) {
    for (int count : {1, 2, 3, 8, 16}) {
      int64_t next = 0;
      for (int i = 0; i < count; ++i) {
        EXPECT_EQ(Share(total, i, count).begin, next);
        next = Share(total, i, count).end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(Hash, EveryByteAndTheLengthCount) {
  unsigned char data[20] = {};
  const uint64_t zero = HashBytes(data, sizeof data);
  for (unsigned char& byte : data) {
    byte = 1;
    EXPECT_NE(HashBytes(data, sizeof data), zero);
    byte = 0;
  }
  EXPECT_NE(HashBytes(data, 19), zero);
}

}  // namespace
}  // namespace tandem
