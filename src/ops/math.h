// Our own exp and log: their bits are the same on every machine, instruction set and libm. Not a
// general mathematics library.
#pragma once

#include <bit>
#include <cstdint>

// Forced inline: a file built for one instruction set must never run another file's copy, which the
// linker would be free to choose. For the same reason FMAs are builtins, which are always exact,
// one instruction or not.
#define TANDEM_MATH_INLINE [[gnu::always_inline]] inline

namespace tandem {

// e^x with an error below 2 units in the last place; 0 below -104, infinity above 88.73, NaN for
// NaN. No branches: loops over it vectorise.
TANDEM_MATH_INLINE float Exp(float x) {
  // Beyond these the result is 0 or infinity anyway. The comparisons let NaN pass.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // x = n ln2 + r, |r| <= ln2 / 2. Adding 1.5 * 2^23 leaves n in the low bits, rounded to nearest.
  constexpr float kShift = 12582912.0f;
  const float shifted = __builtin_fmaf(x, 1.44269504f, kShift);
  const float n = shifted - kShift;
  // ln2 in two floats. The first step is exact: both terms are multiples of 2^-24, the rest is
  // below 1/2.
  float r = __builtin_fmaf(n, -0.693147182f, x);
  r = __builtin_fmaf(n, 1.90465421e-9f, r);
  // Taylor to r^7: the next term is below 0.3466^8 / 8! = 5.2e-9, a twelfth of a unit.
  float p = 1.0f / 5040;
  p = __builtin_fmaf(p, r, 1.0f / 720);
  p = __builtin_fmaf(p, r, 1.0f / 120);
  p = __builtin_fmaf(p, r, 1.0f / 24);
  p = __builtin_fmaf(p, r, 1.0f / 6);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r, 1.0f);
  p = __builtin_fmaf(p, r, 1.0f);
  // Times 2^n in two halves: n reaches from -150 to 128, more than one exponent can hold. Only the
  // last multiplication rounds.
  const int32_t exponent =
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift));
  const int32_t half = exponent >> 1;
  const uint32_t scale1 = static_cast<uint32_t>(half + 127) << 23;
  const uint32_t scale2 = static_cast<uint32_t>(exponent - half + 127) << 23;
  return p * std::bit_cast<float>(scale1) * std::bit_cast<float>(scale2);
}

// ln x with a relative error below 1e-15. REQUIRES: x positive, finite and not subnormal; else the
// result is meaningless (but no error).
TANDEM_MATH_INLINE double Log(double x) {
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)), so that x near 1 has e = 0 and keeps its digits.
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int32_t e = static_cast<int32_t>(static_cast<int64_t>(bits - kSqrtHalf) >> 52);
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(int64_t{e}) << 52));
  // ln m = 2 atanh(s) = 2s (1 + z/3 + z^2/5 + ...), s = (m-1)/(m+1), z = s^2 <= 0.02944. To z^10:
  // the next term is below z^11 / 23 = 6e-19.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 21;
  p = __builtin_fma(p, z, 1.0 / 19);
  p = __builtin_fma(p, z, 1.0 / 17);
  p = __builtin_fma(p, z, 1.0 / 15);
  p = __builtin_fma(p, z, 1.0 / 13);
  p = __builtin_fma(p, z, 1.0 / 11);
  p = __builtin_fma(p, z, 1.0 / 9);
  p = __builtin_fma(p, z, 1.0 / 7);
  p = __builtin_fma(p, z, 1.0 / 5);
  p = __builtin_fma(p, z, 1.0 / 3);
  const double twice_s = 2.0 * s;
  const double log_m = __builtin_fma(twice_s * z, p, twice_s);
  return __builtin_fma(static_cast<double>(e), 0.69314718055994531, log_m);
}

}  // namespace tandem
