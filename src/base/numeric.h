// Storage formats of numbers and the small integer arithmetic shared by all layers; no
// floating-point kernels.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

// The upper half of a float; converts from float with round-to-nearest-even (NaN stays NaN).
struct BFloat16 {
  uint16_t bits = 0;

  static BFloat16 FromFloat(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  }
  float ToFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// FP8 e4m3 without infinities: sign, 4 bits of exponent (bias 7), 3 of mantissa; magnitude 0x7f is
// NaN, the largest number is 448, the smallest above 0 is 2^-9 (arXiv 2209.05433).
struct Float8E4M3 {
  uint8_t bits = 0;

  // Rounds to nearest even; what is larger than 448, infinity too, becomes 448, NaN becomes 0x7f.
  static Float8E4M3 FromFloat(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t sign = (u >> 24) & 0x80u;
    if (magnitude > 0x7f800000u) return {0x7f};
    if (magnitude >= std::bit_cast<uint32_t>(448.0f)) return {static_cast<uint8_t>(sign | 0x7e)};
    if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
      // Floats at 2^14 are 2^-9 apart, as subnormal codes are: the addition rounds.
      const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
      return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xffu))};
    }
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return {static_cast<uint8_t>(sign | ((rounded >> 20) - (kBiasDifference << 3)))};
  }
  float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    const uint32_t magnitude = bits & 0x7fu;
    if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (magnitude < 8) {
      const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
    }
    return std::bit_cast<float>(sign | ((magnitude << 20) + (kBiasDifference << 23)));
  }

 private:
  static constexpr uint32_t kBiasDifference = 127 - 7;
};

// A half-open range of units (rows, columns, heads, experts, blocks).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `count` of `total` units: [floor(index*total/count),
// floor((index+1)*total/count)).
inline Range Share(int64_t total, int64_t index, int64_t count) {
  return {index * total / count, (index + 1) * total / count};
}

inline int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace tandem
