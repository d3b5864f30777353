// Vec16 for AVX-512 (F, BW, DQ, VL): one register. Only for ops/cpu/simd.h.
#pragma once

#include <immintrin.h>

#include "base/numeric.h"

namespace tandem::TANDEM_ISA {

// Rows per pass over a panel: 12 chains cover 4 cycles of latency on 2 FMA units with room to
// spare, and the weights' load is one of 13 (each FMA loads its broadcast operand; two loads a
// cycle are the limit). 12 sums, 12 sums of an FP8 block and the weights fit 32 registers.
inline constexpr int kTileRows = 12;

struct Vec16 {
  __m512 lanes;

  static Vec16 Zero() { return {_mm512_setzero_ps()}; }
  static Vec16 Broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static Vec16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // Reads the first n lanes, 0 <= n; the others are zeros.
  static Vec16 Load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(FirstLanes(n), p)}; }
  static Vec16 Load(const BFloat16* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  // The codes' values / 256, as in vec16_avx2.h.
  static Vec16 Load(const Float8E4M3* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtph_ps(_mm256_andnot_si256(
        _mm256_set1_epi16(0x4000), _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7)))};
  }
  void Store(float* p) const { _mm512_storeu_ps(p, lanes); }
  // Stores the first n lanes, 0 <= n.
  void Store(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, FirstLanes(n), lanes); }

 private:
  static __mmask16 FirstLanes(int64_t n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1);
  }
};

// a * b + c, rounded once per lane.
inline Vec16 Fma(const Vec16& a, const Vec16& b, const Vec16& c) {
  return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
}
inline Vec16 operator+(const Vec16& a, const Vec16& b) {
  return {_mm512_add_ps(a.lanes, b.lanes)};
}
inline Vec16 operator*(const Vec16& a, const Vec16& b) {
  return {_mm512_mul_ps(a.lanes, b.lanes)};
}

}  // namespace tandem::TANDEM_ISA
