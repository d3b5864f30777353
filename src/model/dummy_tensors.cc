#include "model/dummy_tensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "base/numeric.h"

namespace tandem {
namespace {

bool IsProjection(const std::string& name) {
  return name.ends_with("_proj.weight") || name.ends_with(".kv_a_proj_with_mqa.weight");
}

// 32 random bits from a counter and a key: "lowbias32" (Wellons, hash prospector, 2018), which
// vectorises where 64-bit multiplications do not.
inline uint32_t RandomBits(uint32_t counter, uint32_t key) {
  uint32_t x = counter ^ key;
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  x ^= x >> 15;
  return x;
}

// Uniform in [-1, 1).
inline float RandomUniform(uint32_t counter, uint32_t key) {
  return static_cast<float>(static_cast<int32_t>(RandomBits(counter, key))) * 0x1p-31f;
}

// Calls fill(counter, key, first, count) for runs of elements [begin, begin + count) that share
// the upper half of their index: the counter is the lower half, the key is made of the tensor's
// key and the upper half.
template <typename Fill>
void ForRuns(uint64_t tensor_key, uint64_t begin, size_t count, const Fill& fill) {
  for (size_t done = 0; done < count;) {
    const uint64_t index = begin + done;
    const size_t run =
        std::min<uint64_t>(count - done, (uint64_t{1} << 32) - (index & 0xffffffffu));
    const uint32_t key = static_cast<uint32_t>(HashCombine(tensor_key, index >> 32));
    fill(static_cast<uint32_t>(index), key, done, run);
    done += run;
  }
}

void FillBFloat16(uint64_t key, uint64_t begin, float scale, uint16_t* out, size_t count) {
  ForRuns(key, begin, count, [=](uint32_t counter, uint32_t run_key, size_t first, size_t run) {
    for (size_t i = 0; i < run; ++i) {
      const float value = scale * RandomUniform(counter + static_cast<uint32_t>(i), run_key);
      const uint32_t bits = std::bit_cast<uint32_t>(value);  // never NaN
      out[first + i] = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
  });
}

constexpr float kMaxFp8 = 448.0f;  // the largest e4m3

// The e4m3 codes of 256 values evenly spaced over [-448, 448].
std::array<uint8_t, 256> MakeLevels() {
  std::array<uint8_t, 256> levels;
  for (int level = 0; level < 256; ++level) {
    levels[level] =
        Float8E4M3::FromFloat(kMaxFp8 * static_cast<float>(2 * level - 255) / 255.0f).bits;
  }
  return levels;
}

// Four codes from each 32 random bits: element i is byte i % 4 of word i / 4.
void FillFp8(uint64_t key, uint64_t begin, uint8_t* out, size_t count) {
  static const std::array<uint8_t, 256> levels = MakeLevels();
  constexpr size_t kWords = 1024;
  std::array<uint32_t, kWords> words;
  for (size_t done = 0; done < count;) {
    const uint64_t index = begin + done;
    const size_t skip = index % 4;
    const size_t size = std::min(count - done, 4 * kWords - skip);
    ForRuns(key, index / 4, (skip + size + 3) / 4,
            [&](uint32_t counter, uint32_t run_key, size_t first, size_t run) {
              for (size_t i = 0; i < run; ++i) {
                words[first + i] = RandomBits(counter + static_cast<uint32_t>(i), run_key);
              }
            });
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(words.data()) + skip;
    const uint8_t* codes = levels.data();
    for (size_t i = 0; i < size; ++i) out[done + i] = codes[bytes[i]];
    done += size;
  }
}

// Of the uniform distribution over [-a, a] with variance 1 / inputs.
float HalfWidth(double inputs) {
  return static_cast<float>(std::sqrt(3.0 / inputs));
}

}  // namespace

DummyTensors::DummyTensors(const ModelConfig& config, uint64_t seed)
    : TensorSource("dummy weights"), quantization_(config.quantization), seed_(seed) {}

bool DummyTensors::Has(const std::string& name) const {
  return !name.starts_with("model.layers.") ||
         (!name.ends_with(".embed_tokens.weight") && !name.ends_with(".shared_head.head.weight"));
}

TensorSource::Entry* DummyTensors::Find(const std::string& name, const std::vector<int64_t>& shape,
                                        TensorFormats formats) {
  TensorInfo info;
  info.name = name;
  info.shape = shape;
  info.dtype = DType::kBF16;
  if (formats == TensorFormats::kScales || name.ends_with("_bias")) info.dtype = DType::kF32;
  if (formats == TensorFormats::kPlainOrFp8 && quantization_.present && IsProjection(name) &&
      !name.ends_with(".eh_proj.weight")) {
    info.dtype = DType::kF8E4M3;
  }
  info.bytes = DTypeSize(info.dtype);
  for (const int64_t size : shape) info.bytes *= static_cast<size_t>(size);
  return &tensors_.try_emplace(name, Entry{std::move(info)}).first->second;
}

Status DummyTensors::Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const {
  const uint64_t key = HashBytes(tensor.name.data(), tensor.name.size(), seed_);
  const size_t size = DTypeSize(tensor.dtype);
  const uint64_t first = begin / size;
  const size_t count = out.size() / size;
  if (tensor.dtype == DType::kF8E4M3) {
    FillFp8(key, first, reinterpret_cast<uint8_t*>(out.data()), count);
  } else if (tensor.name.ends_with("_scale_inv")) {
    // Codes reach 448; blocks differ by a quarter at most.
    const double inputs = static_cast<double>(tensor.shape[1] * quantization_.block_columns);
    float* scales = reinterpret_cast<float*>(out.data());
    for (size_t i = 0; i < count; ++i) {
      const uint64_t index = first + i;
      const float jitter =
          RandomUniform(static_cast<uint32_t>(index), static_cast<uint32_t>(key + (index >> 32)));
      scales[i] = HalfWidth(inputs) / kMaxFp8 * (1.0f + 0.25f * jitter);
    }
  } else if (tensor.dtype == DType::kF32) {
    std::memset(out.data(), 0, out.size());
  } else if (tensor.shape.size() == 1) {
    std::fill_n(reinterpret_cast<uint16_t*>(out.data()), count, BFloat16::FromFloat(1.0f).bits);
  } else {
    const bool embedding = tensor.name.ends_with("embed_tokens.weight");
    const double inputs = embedding ? 1.0 : static_cast<double>(tensor.shape[1]);
    FillBFloat16(key, first, HalfWidth(inputs), reinterpret_cast<uint16_t*>(out.data()), count);
  }
  return Status();
}

}  // namespace tandem
