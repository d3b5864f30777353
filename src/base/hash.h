// A 64-bit hash for comparing states between ranks and naming seeds; not for adversarial input.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes all bits.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline uint64_t HashCombine(uint64_t hash, uint64_t value) {
  return MixBits(hash ^ MixBits(value));
}

inline uint64_t HashBytes(const void* data, size_t size, uint64_t hash = 0) {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word = 0;
    __builtin_memcpy(&word, bytes + i, 8);
    hash = HashCombine(hash, word);
  }
  uint64_t tail = size;
  for (; i < size; ++i) tail = (tail << 8) | bytes[i];
  return HashCombine(hash, tail);
}

}  // namespace tandem
