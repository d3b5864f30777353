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
