#include "ops/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace tandem {
namespace {

void EncodeBf16(const float* values, int64_t size, std::byte* out) {
  for (int64_t i = 0; i < size; ++i) {
    const BFloat16 rounded = BFloat16::FromFloat(values[i]);
    std::memcpy(out + i * sizeof rounded, &rounded, sizeof rounded);
  }
}

// 2^ceil(log2(max(largest magnitude / 448, 1e-4))); NaN if a value is NaN.
float LatentScale(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) {
    if (std::isnan(value)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(value));
  }
  largest = std::min(largest, std::numeric_limits<float>::max());
  const uint32_t bits = std::bit_cast<uint32_t>(std::max(largest / 448.0f, 1e-4f));
  // Up to the next exponent unless all bits of the mantissa are 0; at most 2^120.
  return std::bit_cast<float>((bits + 0x007fffffu) & 0xff800000u);
}

void EncodeFp8(const float* values, int64_t kv_lora_rank, std::byte* out) {
  std::byte* scales = out + kv_lora_rank;
  for (int64_t begin = 0; begin < kv_lora_rank; begin += kLatentScaleBlock) {
    const int64_t size = std::min<int64_t>(kLatentScaleBlock, kv_lora_rank - begin);
    const float scale = LatentScale({values + begin, static_cast<size_t>(size)});
    std::memcpy(scales + begin / kLatentScaleBlock * sizeof scale, &scale, sizeof scale);
    for (int64_t i = begin; i < begin + size; ++i) {
      out[i] = std::byte{Float8E4M3::FromFloat(values[i] / scale).bits};
    }
  }
}

}  // namespace

RopeTable::RopeTable(std::span<const float> inv_freq, float multiplier, int64_t positions)
    : pairs_(static_cast<int64_t>(inv_freq.size())),
      cos_(inv_freq.size() * positions),
      sin_(inv_freq.size() * positions) {
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < pairs_; ++i) {
      const double angle = static_cast<float>(p) * inv_freq[i];
      cos_[p * pairs_ + i] = static_cast<float>(std::cos(angle)) * multiplier;
      sin_[p * pairs_ + i] = static_cast<float>(std::sin(angle)) * multiplier;
    }
  }
}

void RopeTable::Rotate(int64_t position, float* x) const {
  const float* cos = cos_.data() + position * pairs_;
  const float* sin = sin_.data() + position * pairs_;
  for (int64_t i = 0; i < pairs_; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = std::fma(a, cos[i], -(b * sin[i]));
    x[2 * i + 1] = std::fma(a, sin[i], b * cos[i]);
  }
}

void EncodeLatent(LatentFormat format, const float* values, int64_t kv_lora_rank, int64_t rope_dim,
                  std::byte* out) {
  switch (format) {
    case LatentFormat::kFp32:
      std::memcpy(out, values, (kv_lora_rank + rope_dim) * sizeof(float));
      return;
    case LatentFormat::kBf16:
      return EncodeBf16(values, kv_lora_rank + rope_dim, out);
    case LatentFormat::kFp8:
      EncodeFp8(values, kv_lora_rank, out);
      return EncodeBf16(values + kv_lora_rank, rope_dim, out + SlotBytes(format, kv_lora_rank, 0));
  }
}

}  // namespace tandem
