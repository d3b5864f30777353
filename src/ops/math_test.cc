#include "ops/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The distance of two floats next to each other at |x|, subnormals included.
long double UnitInLastPlace(long double x) {
  const float f = static_cast<float>(std::abs(x));
  return static_cast<long double>(std::nextafter(f, kInf)) - f;
}

TEST(Math, ExpIsWithinTwoUnits) {
  // Every 997th float of either sign: 4 million arguments, all exponents.
  long double worst = 0;
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 997) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x > 88.7228f) continue;
      const long double exact = std::exp(static_cast<long double>(x));
      worst = std::max(worst, std::abs(Exp(x) - exact) / UnitInLastPlace(exact));
    }
  }
  EXPECT_LT(worst, 2.0L);
  EXPECT_GT(worst, 0.5L);  // else this test does not look
}

TEST(Math, ExpInTheRangeOfLogits) {
  long double worst = 0;
  for (float x = -40.0f; x <= 1.0f; x += 1.0f / 65536) {
    const long double exact = std::exp(static_cast<long double>(x));
    worst = std::max(worst, std::abs(Exp(x) - exact) / UnitInLastPlace(exact));
  }
  EXPECT_LT(worst, 1.5L);
}

TEST(Math, ExpAtTheEdges) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(-kInf), 0.0f);
  EXPECT_EQ(Exp(-1e30f), 0.0f);
  EXPECT_EQ(Exp(-104.0f), 0.0f);
  EXPECT_EQ(Exp(-103.5f), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(Exp(kInf), kInf);
  EXPECT_EQ(Exp(88.73f), kInf);
  EXPECT_LT(Exp(88.722f), kInf);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(Exp(-std::numeric_limits<float>::quiet_NaN())));
}

long double LogError(double x) {
  const long double exact = std::log(static_cast<long double>(x));
  return exact == 0 ? std::abs(static_cast<long double>(Log(x)))
                    : std::abs((Log(x) - exact) / exact);
}

TEST(Math, LogIsExactTo15Digits) {
  long double worst = 0;
  // The uniforms of the sampler.
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += 1009) {
    worst = std::max(worst, LogError((static_cast<double>(i) + 0.5) * 0x1p-32));
  }
  // Around 1, where the result passes zero, and around the border between two exponents.
  for (const double center : {1.0, std::sqrt(0.5), std::sqrt(2.0), 0.5, 2.0}) {
    for (double step = 0x1p-52; step < 0.2; step *= 1.01) {
      worst = std::max({worst, LogError(center - step * center), LogError(center + step * center)});
    }
  }
  // All exponents.
  for (double x = std::numeric_limits<double>::min(); x < 1e300; x *= 1.0123) {
    worst = std::max(worst, LogError(x));
  }
  EXPECT_LT(worst, 1e-15L);
  EXPECT_EQ(Log(1.0), 0.0);
}

// Bits that any machine, compiler or instruction set must give. They are what this code gave when
// the other tests here found it right; a change of them changes texts.
TEST(Math, BitsAreFixed) {
  uint32_t exp_hash = 0;
  uint64_t log_hash = 0;
  for (int i = 1; i <= 100'000; ++i) {
    exp_hash = exp_hash * 31 + std::bit_cast<uint32_t>(Exp(-0.001f * static_cast<float>(i)));
    log_hash = log_hash * 31 + std::bit_cast<uint64_t>(Log(1e-5 * i));
  }
  EXPECT_EQ(exp_hash, 1370554475u);
  EXPECT_EQ(log_hash, 11160419987419441984u);
}

// A vectorised loop gives the bits of single calls.
TEST(Math, LoopsGiveTheBitsOfSingleCalls) {
  std::vector<float> x(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 90.0f - 0.2f * static_cast<float>(i);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = Exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float single = x[i];
    EXPECT_EQ(std::bit_cast<uint32_t>(Exp(single)), std::bit_cast<uint32_t>(y[i])) << x[i];
  }
}

}  // namespace
}  // namespace tandem
