#include "model/cycling_tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/hash.h"
#include "base/numeric.h"

namespace tandem {
namespace {

// The step of the cycle: about V / golden ratio, so that near tokens do not follow each other, and
// without a common divisor, so that it is one cycle.
int64_t Step(int64_t vocab_size) {
  int64_t step = std::max<int64_t>(vocab_size * 5 / 8, 1);
  while (std::gcd(step, vocab_size) != 1) ++step;
  return step;
}

// Calls row(r, first column, begin, count) for the parts of rows in elements [begin, begin +
// count).
using RowPart = std::function<void(int64_t row, int64_t column, size_t begin, size_t count)>;
void ForRowParts(int64_t columns, size_t begin, size_t count, const RowPart& part) {
  for (size_t done = 0; done < count;) {
    const int64_t at = static_cast<int64_t>(begin + done);
    const size_t run = std::min<size_t>(count - done, columns - at % columns);
    part(at / columns, at % columns, done, run);
    done += run;
  }
}

}  // namespace

CyclingTensors::CyclingTensors(const ModelConfig& config, uint64_t seed, double acceptance)
    : DummyTensors(config, seed),
      vocab_size_(config.vocab_size),
      hidden_size_(config.hidden_size),
      seed_(seed),
      acceptance_(acceptance) {
  embedding_.name = "model.embed_tokens.weight";
  embedding_.dtype = DType::kBF16;
  embedding_.shape = {vocab_size_, hidden_size_};
  embedding_.bytes = static_cast<size_t>(vocab_size_ * hidden_size_) * sizeof(BFloat16);
}

int64_t CyclingTensors::Successor(int64_t token, int64_t vocab_size) {
  return (token + Step(vocab_size)) % vocab_size;
}

bool CyclingTensors::IsAccepted(int64_t token) const {
  const uint64_t hash = HashCombine(seed_, static_cast<uint64_t>(token));
  return static_cast<double>(hash >> 11) * 0x1p-53 < acceptance_;
}

bool CyclingTensors::Has(const std::string& name) const {
  return DummyTensors::Has(name) || name.ends_with(".embed_tokens.weight");
}

Status CyclingTensors::Read(const TensorInfo& tensor, size_t begin,
                            std::span<std::byte> out) const {
  const std::string& name = tensor.name;
  if (name.ends_with(".o_proj.weight") || name.ends_with(".down_proj.weight")) {
    std::memset(out.data(), 0, out.size());  // a zero in every format
    return Status();
  }
  const auto for_parts = [&](const RowPart& part) {
    ForRowParts(tensor.shape[1], begin / sizeof(BFloat16), out.size() / sizeof(BFloat16), part);
    return Status();
  };
  const auto copy_embedding = [&](int64_t token, int64_t column, size_t first, size_t count) {
    const size_t from = static_cast<size_t>(token * hidden_size_ + column) * sizeof(BFloat16);
    const auto to = out.subspan(first * sizeof(BFloat16), count * sizeof(BFloat16));
    CHECK(DummyTensors::Read(embedding_, from, to).ok());
  };
  if (name == "lm_head.weight") {
    return for_parts([&](int64_t row, int64_t column, size_t first, size_t count) {
      const int64_t before = (row + vocab_size_ - Step(vocab_size_)) % vocab_size_;
      copy_embedding(before, column, first, count);
    });
  }
  if (name.starts_with("model.layers.") && name.ends_with(".embed_tokens.weight")) {
    return for_parts([&](int64_t row, int64_t column, size_t first, size_t count) {
      copy_embedding(IsAccepted(row) ? row : (row + 1) % vocab_size_, column, first, count);
    });
  }
  if (name.ends_with(".eh_proj.weight")) {
    BFloat16* values = reinterpret_cast<BFloat16*>(out.data());
    return for_parts([&](int64_t row, int64_t column, size_t first, size_t count) {
      std::fill_n(values + first, count, BFloat16());
      const int64_t at = row - column;  // the embedding half is the identity
      if (at >= 0 && at < static_cast<int64_t>(count)) {
        values[first + at] = BFloat16::FromFloat(1.0f);
      }
    });
  }
  return DummyTensors::Read(tensor, begin, out);
}

}  // namespace tandem
