#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

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

Status FailIf(bool fail) {
  return fail ? ResourceExhausted("full") : Status();
}

Status Twice(bool first, bool second) {
  RETURN_IF_ERROR(FailIf(first));
  RETURN_IF_ERROR(FailIf(second));
  return Unavailable("end");
}

TEST(Status, ReturnIfErrorStopsAtTheFirst) {
  EXPECT_EQ(Twice(true, true).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Twice(false, true).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Twice(false, false).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Status().ok());
}

TEST(Status, ResultsMoveWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  const std::unique_ptr<int> value = std::move(*result);
  EXPECT_EQ(*value, 3);
}

TEST(StatusDeathTest, TheValueOfAFailureIsABug) {
  EXPECT_DEATH(static_cast<void>(Quarter(7).value()), "CHECK failed");
  EXPECT_DEATH(static_cast<void>(Result<int>{Status()}), "CHECK failed");
}

TEST(CheckDeathTest, NamesThePlaceAndTheCondition) {
  const int two = 2;
  CHECK(two == 2);
  EXPECT_DEATH(CHECK(two == 3), "base_test.cc:[0-9]+: CHECK failed: two == 3");
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

// The value of a code by the format's definition.
double ValueOfE4M3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(Numeric, Float8CodesHaveTheirValues) {
  for (int code = 0; code < 256; ++code) {
    const Float8E4M3 x{static_cast<uint8_t>(code)};
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(x.ToFloat()));
      EXPECT_EQ(Float8E4M3::FromFloat(x.ToFloat()).bits, 0x7f);
      continue;
    }
    EXPECT_EQ(x.ToFloat(), ValueOfE4M3(code)) << code;
    EXPECT_EQ(std::signbit(x.ToFloat()), code >= 0x80);
    EXPECT_EQ(Float8E4M3::FromFloat(x.ToFloat()).bits, code);
  }
  EXPECT_EQ(Float8E4M3{0x7e}.ToFloat(), 448.0f);
  EXPECT_EQ(Float8E4M3{0x01}.ToFloat(), 0x1p-9f);
}

// Between neighbours: at the midpoint to the even code, a float beside it to the nearer one.
TEST(Numeric, Float8RoundsToNearestEvenAndSaturates) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int code = 0; code < 0x7e; ++code) {
    for (const int sign : {0, 0x80}) {
      const float middle = static_cast<float>((ValueOfE4M3(code) + ValueOfE4M3(code + 1)) / 2);
      const float signed_middle = sign != 0 ? -middle : middle;
      const int even = code % 2 == 0 ? code : code + 1;
      EXPECT_EQ(Float8E4M3::FromFloat(signed_middle).bits, even | sign);
      EXPECT_EQ(Float8E4M3::FromFloat(std::nextafter(signed_middle, 0.0f)).bits, code | sign);
      EXPECT_EQ(Float8E4M3::FromFloat(std::nextafter(signed_middle, sign != 0 ? -kInf : kInf)).bits,
                (code + 1) | sign);
    }
  }
  for (const float large : {449.0f, 464.0f, 480.0f, 1e30f, kInf}) {
    EXPECT_EQ(Float8E4M3::FromFloat(large).bits, 0x7e);
    EXPECT_EQ(Float8E4M3::FromFloat(-large).bits, 0xfe);
  }
  EXPECT_EQ(Float8E4M3::FromFloat(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(Float8E4M3::FromFloat(-std::numeric_limits<float>::quiet_NaN()).bits, 0x7f);
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

TEST(Numeric, CeilDiv) {
  EXPECT_EQ(CeilDiv(0, 16), 0);
  EXPECT_EQ(CeilDiv(1, 16), 1);
  EXPECT_EQ(CeilDiv(16, 16), 1);
  EXPECT_EQ(CeilDiv(17, 16), 2);
}

// Seeds of requests are derived by these: other values would change users' texts.
TEST(Hash, ValuesAreFixed) {
  EXPECT_EQ(MixBits(0), 0xe220a8397b1dcdafull);  // SplitMix64's first output for seed 0
  EXPECT_NE(HashCombine(1, 2), HashCombine(2, 1));
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
