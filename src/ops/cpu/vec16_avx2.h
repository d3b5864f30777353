// Vec16 for AVX2, FMA and F16C: two registers of eight lanes. Only for ops/cpu/simd.h.
#pragma once

#include <immintrin.h>

#include "base/numeric.h"

namespace tandem::TANDEM_ISA {

// Rows per pass over a panel: 6 rows x 2 registers of sums, 2 of weights, 1 broadcast and 1 mask of
// FP8 fill AVX2's 16 registers.
inline constexpr int kTileRows = 6;

struct Vec16 {
  __m256 lo, hi;

  static Vec16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec16 Broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  // Reads the first n lanes, 0 <= n <= 16; the others are zeros.
  static Vec16 Load(const float* p, int64_t n) {
    if (n >= 16) return Load(p);
    alignas(32) float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return Load(lanes);
  }
  static Vec16 Load(const BFloat16* p) { return {Widen(p), Widen(p + 8)}; }
  // The codes' values / 256; NaN codes become +-480 / 256. As signed 16 bits and 7 bits further up,
  // sign, exponent and mantissa lie as in fp16, which also has subnormals, but for the second copy
  // of the sign in bit 14. fp16 has an exponent bias of 15, e4m3 of 7.
  static Vec16 Load(const Float8E4M3* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i halves = _mm256_andnot_si256(_mm256_set1_epi16(0x4000),
                                               _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  void Store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  // Stores the first n lanes, 0 <= n <= 16.
  void Store(float* p, int64_t n) const {
    if (n >= 16) return Store(p);
    alignas(32) float lanes[16];
    Store(lanes);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }

 private:
  static __m256 Widen(const BFloat16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
};

// a * b + c, rounded once per lane.
inline Vec16 Fma(const Vec16& a, const Vec16& b, const Vec16& c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec16 operator+(const Vec16& a, const Vec16& b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec16 operator*(const Vec16& a, const Vec16& b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

}  // namespace tandem::TANDEM_ISA
