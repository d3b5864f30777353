#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "ops/math.h"

namespace tandem {
namespace {

// Sums and maxima over a row run in this many lanes, element i in lane i % kLanes, folded in
// ascending order of lanes. Two AVX-512 registers of floats; the bits do not depend on the
// registers that a machine has.
constexpr size_t kLanes = 32;

// The largest logit; NaN if there is one in the row, -infinity for an empty row.
float RowMaximum(std::span<const float> row) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float lanes[kLanes];
  uint32_t nan[kLanes] = {};
  std::fill(lanes, lanes + kLanes, kLowest);
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = row[i + lane];
      lanes[lane] = x > lanes[lane] ? x : lanes[lane];
      nan[lane] |= x != x ? 1u : 0u;
    }
  }
  float maximum = kLowest;
  uint32_t any_nan = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    maximum = std::max(maximum, lanes[lane]);
    any_nan |= nan[lane];
  }
  for (; i < row.size(); ++i) {
    maximum = std::max(maximum, row[i]);
    any_nan |= row[i] != row[i] ? 1u : 0u;
  }
  return any_nan ? std::numeric_limits<float>::quiet_NaN() : maximum;
}

int32_t FirstEqual(std::span<const float> row, float value) {
  return static_cast<int32_t>(std::find(row.begin(), row.end(), value) - row.begin());
}

// logit - maximum; 0 for the maximum itself, which may be infinite.
[[gnu::always_inline]] inline double Below(float logit, float maximum) {
  return logit == maximum ? 0.0 : static_cast<double>(logit) - static_cast<double>(maximum);
}

// e^((logit - maximum) / temperature): a probability, up to the factor that makes their sum 1. In
// floats, so that loops over it run in whole vectors; the argument's rounding moves a weight by
// less than 1e-5 of itself.
[[gnu::always_inline]] inline float Weight(float logit, float maximum, float temperature) {
  const float below = logit == maximum ? 0.0f : logit - maximum;
  return Exp(below / temperature);
}

double SumOfWeights(std::span<const float> row, float maximum, float temperature) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    float weights[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      weights[lane] = Weight(row[i + lane], maximum, temperature);
    }
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[lane];
  }
  for (size_t lane = 0; i + lane < row.size(); ++lane) {
    lanes[lane] += Weight(row[i + lane], maximum, temperature);
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

std::array<uint32_t, 4> NoiseBits(uint64_t seed, int64_t position, uint32_t group) {
  const uint64_t where = static_cast<uint64_t>(position);
  return Philox4x32({static_cast<uint32_t>(where), static_cast<uint32_t>(where >> 32), group, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

double GumbelOf(uint32_t bits) {
  const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-32;
  return -Log(-Log(uniform));
}

// An upper bound of GumbelOf(bits) without logarithms: -ln u >= 1 - u = v gives G <= -ln v, and v
// is at least 2^-(1 + leading zeros of ~bits). The last term is more than the rounding of Log.
double GumbelBound(uint32_t bits) {
  return 0.69314718055994531 * (1 + std::countl_zero(~bits)) + 1e-9;
}

// The best noisy token so far, by (score descending, id ascending).
class Winner {
 public:
  Winner(float maximum, const SamplingParams& params, int64_t position)
      : maximum_(maximum),
        temperature_(params.temperature),
        seed_(params.seed),
        position_(position) {}

  int32_t token() const { return token_; }

  // Whether any token with this logit, or a smaller one, could still win. May say yes wrongly.
  bool MayWin(float logit) const { return Below(logit, maximum_) >= least_; }

  void Offer(float logit, int32_t token) {
    Offer(logit, token, NoiseBits(seed_, position_, static_cast<uint32_t>(token) / 4)[token % 4]);
  }

  // Offers `row`[first], ... up to four tokens. REQUIRES: first % 4 == 0.
  void OfferGroup(std::span<const float> row, size_t first) {
    const std::array<uint32_t, 4> bits =
        NoiseBits(seed_, position_, static_cast<uint32_t>(first / 4));
    for (size_t i = first; i < std::min(first + 4, row.size()); ++i) {
      Offer(row[i], static_cast<int32_t>(i), bits[i - first]);
    }
  }

 private:
  void Offer(float logit, int32_t token, uint32_t bits) {
    const double scaled = Below(logit, maximum_) / temperature_;
    if (scaled + GumbelBound(bits) < score_) return;
    const double score = scaled + GumbelOf(bits);
    // A masked token has score -infinity and must not win a tie with "none yet".
    if (score < score_ || score == -kInfinity || (score == score_ && token > token_)) return;
    score_ = score;
    token_ = token;
    // Whoever is below this loses even with the largest noise. 1e-6 is far more than the rounding
    // of the products and quotients, which are below 100 where the comparison is close.
    least_ = (score_ - GumbelBound(~0u) - 1e-6) * temperature_;
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const float maximum_;
  const double temperature_;
  const uint64_t seed_;
  const int64_t position_;
  double score_ = -kInfinity;
  double least_ = -kInfinity;
  int32_t token_ = -1;
};

// Without top_k and top_p: no order is needed.
int32_t SampleFromAll(std::span<const float> row, Winner& winner, float maximum,
                      const SamplingParams& params) {
  // The best first, so that most of the others need no noise.
  winner.Offer(maximum, FirstEqual(row, maximum));
  for (size_t i = 0; i < row.size(); i += 4) {
    float largest = row[i];
    for (size_t j = i + 1; j < std::min(i + 4, row.size()); ++j)
      largest = std::max(largest, row[j]);
    if (!winner.MayWin(largest)) continue;
    if (params.min_p <= 0.0f) {
      winner.OfferGroup(row, i);
      continue;
    }
    for (size_t j = i; j < std::min(i + 4, row.size()); ++j) {
      if (!winner.MayWin(row[j])) continue;
      if (Weight(row[j], maximum, params.temperature) < params.min_p) continue;
      winner.Offer(row[j], static_cast<int32_t>(j));
    }
  }
  return winner.token();
}

// Integers whose ascending order is (logit descending, id ascending); the id is in the low half.
// Masked tokens are left out.
std::vector<uint64_t> OrderKeys(std::span<const float> row) {
  std::vector<uint64_t> keys;
  keys.reserve(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == -std::numeric_limits<float>::infinity()) continue;
    const uint32_t bits = std::bit_cast<uint32_t>(row[i] + 0.0f);  // -0 becomes +0: they are equal
    const uint32_t descending = bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
    keys.push_back(uint64_t{descending} << 32 | i);
  }
  return keys;
}

// Puts the `count` first keys in order, the rest behind them. REQUIRES: the first `done` are so
// already.
void OrderFirst(std::vector<uint64_t>& keys, size_t done, size_t count) {
  const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(done);
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(count);
  if (end != keys.end()) std::nth_element(begin, end, keys.end());
  std::sort(begin, end);
}

// How many of the ordered tokens top_p keeps; orders `keys` as far as needed. `ordered` are in
// order already.
size_t TopPCount(std::span<const float> row, std::vector<uint64_t>& keys, size_t ordered,
                 double needed, float maximum, float temperature) {
  // Most rows end within a few dozen tokens; a flat row costs a geometric series of selections.
  constexpr size_t kFirstTokens = 64;
  constexpr size_t kGrowth = 8;
  double sum = 0.0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i == ordered) {
      const size_t next = std::min(keys.size(), std::max(kFirstTokens, ordered * kGrowth));
      OrderFirst(keys, ordered, next);
      ordered = next;
    }
    sum += Weight(row[static_cast<uint32_t>(keys[i])], maximum, temperature);
    if (sum >= needed) return i + 1;
  }
  return keys.size();
}

int32_t SampleFromBest(std::span<const float> row, Winner& winner, float maximum,
                       const SamplingParams& params) {
  const float temperature = params.temperature;
  std::vector<uint64_t> keys = OrderKeys(row);
  const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < keys.size();
  if (top_k) {
    OrderFirst(keys, 0, static_cast<size_t>(params.top_k));
    keys.resize(static_cast<size_t>(params.top_k));
  }
  if (params.top_p < 1.0f) {
    double total = 0.0;
    if (top_k) {
      for (const uint64_t key : keys) {
        total += Weight(row[static_cast<uint32_t>(key)], maximum, temperature);
      }
    } else {
      total = SumOfWeights(row, maximum, temperature);
    }
    keys.resize(
        TopPCount(row, keys, top_k ? keys.size() : 0, total * params.top_p, maximum, temperature));
  }
  for (const uint64_t key : keys) {
    const int32_t token = static_cast<int32_t>(static_cast<uint32_t>(key));
    const float logit = row[static_cast<size_t>(token)];
    if (!winner.MayWin(logit) || Weight(logit, maximum, temperature) < params.min_p) continue;
    winner.Offer(logit, token);
  }
  return winner.token();
}

// Log-probabilities of one row: what all its tokens share.
struct RowNorm {
  float maximum;
  double log_sum;
  float Logprob(float logit) const { return static_cast<float>(Below(logit, maximum) - log_sum); }
};

RowNorm NormOf(std::span<const float> row) {
  const float maximum = RowMaximum(row);
  const double sum = SumOfWeights(row, maximum, 1.0f);  // NaN if the row holds one, else at least 1
  return {maximum, std::isnan(sum) ? sum : Log(sum)};
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xd2511f53, kMultiplier1 = 0xcd9e8d57;
  constexpr uint32_t kWeyl0 = 0x9e3779b9, kWeyl1 = 0xbb67ae85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c[0];
    const uint64_t product1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return c;
}

double Gumbel(uint64_t seed, int64_t position, int32_t token) {
  return GumbelOf(NoiseBits(seed, position, static_cast<uint32_t>(token) / 4)[token % 4]);
}

int32_t SampleToken(std::span<const float> logits, const SamplingParams& params, int64_t position) {
  const float maximum = RowMaximum(logits);
  if (std::isnan(maximum) || maximum == -std::numeric_limits<float>::infinity()) return -1;
  if (params.temperature == 0.0f) return FirstEqual(logits, maximum);
  Winner winner(maximum, params, position);
  if (params.top_k > 0 || params.top_p < 1.0f) {
    return SampleFromBest(logits, winner, maximum, params);
  }
  return SampleFromAll(logits, winner, maximum, params);
}

float LogprobOf(std::span<const float> logits, int32_t token) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  return NormOf(logits).Logprob(logits[static_cast<size_t>(token)]);
}

void FillLogprobs(std::span<const float> logits, int32_t token, int num_top, SampleResult& result) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  CHECK(num_top >= 0 && num_top <= kMaxTopLogprobs);
  const RowNorm norm = NormOf(logits);
  result = SampleResult();
  result.token = token;
  result.logprob = norm.Logprob(logits[static_cast<size_t>(token)]);

  int32_t* const top = result.top_token;
  int found = 0;
  for (size_t i = 0; num_top > 0 && i < logits.size(); ++i) {
    const float logit = logits[i];
    if (found == num_top && !(logit > logits[static_cast<size_t>(top[found - 1])])) continue;
    // Insertion behind equal ones, which have lower ids.
    int place = found < num_top ? found++ : found - 1;
    for (; place > 0 && logit > logits[static_cast<size_t>(top[place - 1])]; --place) {
      top[place] = top[place - 1];
    }
    top[place] = static_cast<int32_t>(i);
  }
  result.num_top = found;
  for (int i = 0; i < found; ++i) {
    result.top_logprob[i] = norm.Logprob(logits[static_cast<size_t>(top[i])]);
  }
}

uint64_t ChoiceSeed(uint64_t seed, int index) {
  return index == 0 ? seed : HashCombine(seed, static_cast<uint64_t>(index));
}

Status ValidateSampling(const SamplingParams& params) {
  if (!std::isfinite(params.temperature) || params.temperature < 0.0f) {
    return InvalidArgument(
        fmt::format("temperature: {} is not a number of at least 0", params.temperature));
  }
  if (params.top_k < 0) {
    return InvalidArgument(fmt::format("top_k: {} is not a number of at least 0", params.top_k));
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return InvalidArgument(fmt::format("top_p: {} is not above 0 and at most 1", params.top_p));
  }
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
    return InvalidArgument(fmt::format("min_p: {} is not from 0 to 1", params.min_p));
  }
  return Status();
}

}  // namespace tandem
