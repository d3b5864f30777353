// vec16_avx512.h over SIMDe, which computes AVX-512's intrinsics with AVX2: for tests on machines
// that have no AVX-512, never in the program.
#pragma once

#include <immintrin.h>

#include <cstring>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/cast.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/storeu.h>

#include "base/numeric.h"

// What SIMDe lacks; these hide the compiler's own, which AVX2 cannot run.
namespace tandem::TANDEM_ISA {

inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* p) {
  float lanes[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) lanes[i] = p[i];
  }
  return _mm512_loadu_ps(lanes);
}

inline void _mm512_mask_storeu_ps(float* p, __mmask16 mask, __m512 value) {
  float lanes[16];
  _mm512_storeu_ps(lanes, value);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = lanes[i];
  }
}

inline __m512i _mm512_cvtepu16_epi32(__m256i halves) {
  uint16_t from[16];
  uint32_t to[16];
  std::memcpy(from, &halves, sizeof from);
  for (int i = 0; i < 16; ++i) to[i] = from[i];
  __m512i words;
  std::memcpy(&words, to, sizeof words);
  return words;
}

inline __m512 _mm512_cvtph_ps(__m256i halves) {
  float lanes[16];
  _mm256_storeu_ps(lanes, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
  _mm256_storeu_ps(lanes + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  return _mm512_loadu_ps(lanes);
}

}  // namespace tandem::TANDEM_ISA

#include "ops/cpu/vec16_avx512.h"
