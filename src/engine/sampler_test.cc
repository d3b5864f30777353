#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/math.h"

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomRow(size_t size, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(size);
  for (float& x : row) x = spread * (static_cast<float>(random()) * 0x1p-31f - 1.0f);
  return row;
}

// A row with few different values, so full of ties.
std::vector<float> TiedRow(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(size);
  for (float& x : row) x = static_cast<float>(random() % 4);
  return row;
}

SamplingParams Params(float temperature, int32_t top_k = 0, float top_p = 1.0f, float min_p = 0.0f,
                      uint64_t seed = 1234) {
  return {temperature, top_k, top_p, min_p, seed};
}

// The tokens that the filters leave, written down as the header says it.
std::vector<int32_t> SlowFilter(const std::vector<float>& row, const SamplingParams& params) {
  std::vector<int32_t> kept(row.size());
  std::iota(kept.begin(), kept.end(), 0);
  std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) { return row[a] > row[b]; });
  const float maximum = row[kept[0]];
  const auto weight = [&](int32_t token) {
    return Exp((row[token] - maximum) / params.temperature);
  };
  if (params.top_k > 0) kept.resize(std::min<size_t>(kept.size(), params.top_k));
  if (params.top_p < 1.0f) {
    double total = 0.0;
    for (const int32_t token : kept) total += weight(token);
    double sum = 0.0;
    size_t count = 0;
    while (count < kept.size() && sum < total * params.top_p) sum += weight(kept[count++]);
    kept.resize(count);
  }
  std::erase_if(kept, [&](int32_t token) { return weight(token) < params.min_p; });
  return kept;
}

int32_t SlowSample(const std::vector<float>& row, const SamplingParams& params, int64_t position) {
  const double maximum = *std::max_element(row.begin(), row.end());
  std::vector<int32_t> kept = SlowFilter(row, params);
  std::sort(kept.begin(), kept.end());
  int32_t best = -1;
  double best_score = -kInf;
  for (const int32_t token : kept) {
    const double score =
        (row[token] - maximum) / params.temperature + Gumbel(params.seed, position, token);
    if (score > best_score) {
      best_score = score;
      best = token;
    }
  }
  return best;
}

TEST(Philox, KnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Gumbel, IsTheFormulaOfItsUniform) {
  for (int32_t token = 0; token < 1000; ++token) {
    const uint64_t seed = 0x0123456789abcdefull;
    const int64_t position = (int64_t{7} << 32) + 5;
    const uint32_t bits = Philox4x32({5, 7, static_cast<uint32_t>(token) / 4, 0},
                                     {0x89abcdef, 0x01234567})[token % 4];
    const long double u = (bits + 0.5L) * 0x1p-32L;
    EXPECT_NEAR(Gumbel(seed, position, token), static_cast<double>(-std::log(-std::log(u))), 1e-13);
  }
}

TEST(Gumbel, HasItsMeanAndVariance) {
  constexpr int kCount = 200'000;
  double sum = 0.0, squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double g = Gumbel(99, i % 100, i / 100);
    sum += g;
    squares += g * g;
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, 0.5772157, 5 * 1.2825 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount - mean * mean, 1.6449341, 0.03);
}

TEST(Sampler, GreedyTakesTheLowestOfTies) {
  std::vector<float> row = RandomRow(1000, 5, 1);
  row[700] = row[333] = row[950] = 6.0f;
  EXPECT_EQ(SampleToken(row, Params(0), 0), 333);
  EXPECT_EQ(SampleToken(row, Params(0, 5, 0.5f, 0.5f), 9), 333);
  EXPECT_EQ(SampleToken(std::vector<float>{-0.0f, 0.0f}, Params(0), 0), 0);
  EXPECT_EQ(SampleToken(std::vector<float>(77, 2.5f), Params(0), 0), 0);
  for (size_t size = 1; size < 100; ++size) {
    std::vector<float> last(size, -1.0f);
    last.back() = -0.5f;
    EXPECT_EQ(SampleToken(last, Params(0), 0), static_cast<int32_t>(size) - 1);
  }
}

TEST(Sampler, NanAndInfinities) {
  for (const SamplingParams& params :
       {Params(0), Params(1), Params(1, 3), Params(1, 0, 0.9f), Params(1, 0, 1.0f, 0.2f)}) {
    for (const size_t size : {1, 3, 32, 100}) {
      EXPECT_EQ(SampleToken(std::vector<float>(size, -kInf), params, 0), -1);
      std::vector<float> row(size, 1.0f);
      row[size - 1] = kNan;
      EXPECT_EQ(SampleToken(row, params, 0), -1);
      row[size - 1] = kInf;
      EXPECT_EQ(SampleToken(row, params, 0), static_cast<int32_t>(size) - 1);
      std::vector<float> masked(size, -kInf);
      masked[size / 2] = -1000.0f;
      for (int position = 0; position < 20; ++position) {
        EXPECT_EQ(SampleToken(masked, params, position), static_cast<int32_t>(size / 2));
      }
    }
    EXPECT_EQ(SampleToken({}, params, 0), -1);
  }
  // Two infinities are equally likely.
  std::vector<float> row = {1, kInf, 2, 3, kInf, 4};
  int first = 0;
  for (int position = 0; position < 1000; ++position) {
    const int32_t token = SampleToken(row, Params(1), position);
    ASSERT_TRUE(token == 1 || token == 4);
    first += token == 1;
  }
  EXPECT_NEAR(first, 500, 80);
}

// Noise is skipped for tokens that cannot win: the same token as if it were not.
TEST(Sampler, SkippingChangesNothing) {
  for (const size_t size : {1, 2, 3, 4, 5, 31, 32, 33, 127, 1000, 4099}) {
    for (const float temperature : {1e-30f, 0.01f, 0.3f, 0.8f, 1.0f, 5.0f, 1000.0f}) {
      for (const float spread : {0.0f, 0.5f, 5.0f, 30.0f}) {
        for (int64_t position = 0; position < 4; ++position) {
          const std::vector<float> row =
              RandomRow(size, spread, static_cast<uint32_t>(size + position));
          const SamplingParams params = Params(temperature);
          ASSERT_EQ(SampleToken(row, params, position), SlowSample(row, params, position))
              << size << " " << temperature << " " << spread << " " << position;
        }
      }
    }
  }
}

TEST(Sampler, FiltersAreThoseOfTheSlowReference) {
  std::mt19937 random(5);
  int filtered = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const size_t size = 1 + random() % (trial % 10 == 0 ? 3000 : 50);
    const std::vector<float> row =
        trial % 3 == 0 ? TiedRow(size, random()) : RandomRow(size, 1.0f + trial % 7, random());
    const float top_ps[] = {1.0f, 0.999f, 0.9f, 0.5f, 0.1f, 1e-6f};
    const float min_ps[] = {0.0f, 0.0f, 0.01f, 0.3f, 1.0f};
    const int32_t top_ks[] = {0, 0, 1, 2, 10, 100000};
    const SamplingParams params =
        Params(0.5f + 0.5f * static_cast<float>(random() % 4), top_ks[random() % 6],
               top_ps[random() % 6], min_ps[random() % 5], random());
    const std::vector<int32_t> kept = SlowFilter(row, params);
    filtered += kept.size() < row.size();
    for (int64_t position = 0; position < 5; ++position) {
      const int32_t token = SampleToken(row, params, position);
      ASSERT_NE(std::find(kept.begin(), kept.end(), token), kept.end()) << trial;
      ASSERT_EQ(token, SlowSample(row, params, position))
          << trial << ": top_k " << params.top_k << " top_p " << params.top_p << " min_p "
          << params.min_p;
    }
  }
  EXPECT_GT(filtered, 1000);
}

// Exactly the tokens that the filters leave can come, each of them: among equal logits the lowest
// ids stay.
TEST(Sampler, FiltersKeepTheLowestOfTies) {
  const std::vector<float> row(8, 1.5f);
  const struct {
    SamplingParams params;
    int32_t kept;
  } kCases[] = {
      {Params(1, 3), 3},
      {Params(1, 0, 0.5f), 4},
      {Params(1, 0, 0.51f), 5},
      {Params(1, 4, 0.5f), 2},
      {Params(1, 0, 1e-9f), 1},
      {Params(1, 0, 1.0f, 1.0f), 8},
      {Params(1, 6, 1.0f, 1.0f), 6},
      {Params(2, 100, 1.0f), 8},
  };
  for (const auto& test : kCases) {
    std::vector<int> seen(8);
    for (int position = 0; position < 400; ++position) {
      ++seen[SampleToken(row, test.params, position)];
    }
    for (int32_t token = 0; token < 8; ++token) {
      EXPECT_EQ(seen[token] > 0, token < test.kept) << test.kept << " " << token;
    }
  }
}

// Pearson's statistic of what SampleToken draws at many positions against the law it should follow.
double ChiSquare(const std::vector<float>& row, const SamplingParams& params, int draws) {
  const std::vector<int32_t> kept = SlowFilter(row, params);
  std::vector<double> expected(row.size());
  double total = 0.0;
  for (const int32_t token : kept) {
    expected[token] = std::exp(row[token] / params.temperature);
    total += expected[token];
  }
  std::vector<int> seen(row.size());
  for (int position = 0; position < draws; ++position) {
    ++seen[SampleToken(row, params, position)];
  }
  double statistic = 0.0;
  for (const int32_t token : kept) {
    const double mean = draws * expected[token] / total;
    statistic += (seen[token] - mean) * (seen[token] - mean) / mean;
  }
  return statistic;
}

TEST(Sampler, FollowsTheSoftmaxLaw) {
  std::vector<float> row = RandomRow(20, 1.5f, 8);
  // 19 degrees of freedom: 43.8 is passed once in 1000 times; at most one seed of ten may be near
  // it.
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_LT(ChiSquare(row, Params(1, 0, 1.0f, 0.0f, seed), 20'000), 43.8) << seed;
    EXPECT_LT(ChiSquare(row, Params(0.6f, 0, 1.0f, 0.0f, seed), 20'000), 43.8) << seed;
    EXPECT_LT(ChiSquare(row, Params(1, 12, 0.9f, 0.05f, seed), 20'000), 43.8) << seed;
  }
  // The statistic does see a law that is a little off.
  std::vector<float> other = row;
  other[3] += 0.3f;
  const SamplingParams params = Params(1);
  std::vector<int> seen(row.size());
  for (int position = 0; position < 20'000; ++position)
    ++seen[SampleToken(other, params, position)];
  double total = 0.0, statistic = 0.0;
  for (const float x : row) total += std::exp(x);
  for (size_t i = 0; i < row.size(); ++i) {
    const double mean = 20'000 * std::exp(row[i]) / total;
    statistic += (seen[i] - mean) * (seen[i] - mean) / mean;
  }
  EXPECT_GT(statistic, 43.8);
}

TEST(Sampler, DrawsOfPositionsAndSeedsAreIndependent) {
  const std::vector<float> row(10, 0.0f);
  constexpr int kDraws = 20'000;
  int same_as_before = 0, same_as_other_seed = 0, same_as_choice = 0;
  for (int position = 1; position <= kDraws; ++position) {
    const int32_t token = SampleToken(row, Params(1), position);
    const auto with_seed = [&](uint64_t seed) { return Params(1, 0, 1.0f, 0.0f, seed); };
    same_as_before += token == SampleToken(row, Params(1), position - 1);
    same_as_other_seed += token == SampleToken(row, with_seed(1235), position);
    same_as_choice += token == SampleToken(row, with_seed(ChoiceSeed(1234, 1)), position);
  }
  for (const int same : {same_as_before, same_as_other_seed, same_as_choice}) {
    EXPECT_NEAR(same, kDraws / 10, 5 * std::sqrt(kDraws * 0.09));
  }
}

// Results are a function of (row, params, position): not of alignment, history, or what follows the
// row.
TEST(Sampler, DependsOnItsArgumentsOnly) {
  const std::vector<float> row = RandomRow(1003, 6, 3);
  std::vector<float> memory(row.size() + 40, kNan);
  const SamplingParams all[] = {Params(0.8f), Params(1, 50), Params(1, 0, 0.9f),
                                Params(1, 0, 1.0f, 0.01f)};
  for (size_t offset = 0; offset < 40; ++offset) {
    std::fill(memory.begin(), memory.end(), offset % 2 ? kNan : 1e9f);
    std::copy(row.begin(), row.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset));
    const std::span<const float> copy(memory.data() + offset, row.size());
    for (const SamplingParams& params : all) {
      EXPECT_EQ(SampleToken(copy, params, 17), SampleToken(row, params, 17)) << offset;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(LogprobOf(copy, 5)),
              std::bit_cast<uint32_t>(LogprobOf(row, 5)));
  }
}

// What this code gave when the other tests here found it right; a change means that texts change.
TEST(Sampler, BitsAreFixed) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    const std::vector<float> row = RandomRow(300 + i, 1.0f + static_cast<float>(i % 10), i);
    const SamplingParams all[] = {Params(0.8f), Params(1, 50), Params(1.5f, 0, 0.9f),
                                  Params(1, 0, 1.0f, 0.01f)};
    for (const SamplingParams& params : all) {
      const int32_t token = SampleToken(row, params, i);
      hash = hash * 31 + static_cast<uint64_t>(token);
      hash = hash * 31 + std::bit_cast<uint32_t>(LogprobOf(row, token));
    }
  }
  EXPECT_EQ(hash, 11993647434588330156u);
}

TEST(Logprobs, AreThoseOfLongDoubles) {
  for (const size_t size : {1, 2, 31, 33, 1000, 129280}) {
    for (const float spread : {0.01f, 5.0f, 50.0f, 500.0f}) {
      const std::vector<float> row = RandomRow(size, spread, static_cast<uint32_t>(size));
      const long double maximum = *std::max_element(row.begin(), row.end());
      long double sum = 0;
      for (const float x : row) sum += std::exp(x - maximum);
      const long double log_sum = maximum + std::log(sum);
      for (size_t token = 0; token < size; token += 1 + size / 50) {
        const long double exact = row[token] - log_sum;
        EXPECT_NEAR(LogprobOf(row, static_cast<int32_t>(token)), static_cast<double>(exact),
                    3e-7 + static_cast<double>(std::abs(exact)) * 6e-8);
      }
    }
  }
}

TEST(Logprobs, TopIsSortedWithTiesByLowestId) {
  for (int trial = 0; trial < 300; ++trial) {
    const size_t size = 1 + static_cast<size_t>(trial) % 60;
    const std::vector<float> row = trial % 2 ? TiedRow(size, trial) : RandomRow(size, 3, trial);
    const int num_top = trial % (kMaxTopLogprobs + 1);
    std::vector<int32_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    SampleResult result;
    std::memset(static_cast<void*>(&result), 0xff, sizeof result);
    const int32_t token = static_cast<int32_t>(trial % size);
    FillLogprobs(row, token, num_top, result);
    EXPECT_EQ(result.token, token);
    EXPECT_EQ(result.logprob, LogprobOf(row, token));
    ASSERT_EQ(result.num_top, std::min<int>(num_top, static_cast<int>(size)));
    for (int i = 0; i < kMaxTopLogprobs; ++i) {
      EXPECT_EQ(result.top_token[i], i < result.num_top ? order[i] : 0);
      EXPECT_EQ(result.top_logprob[i], i < result.num_top ? LogprobOf(row, order[i]) : 0.0f);
    }
  }
}

TEST(Logprobs, InfinitiesAndNan) {
  EXPECT_EQ(LogprobOf(std::vector<float>{1, -kInf}, 0), 0.0f);
  EXPECT_EQ(LogprobOf(std::vector<float>{1, -kInf}, 1), -kInf);
  EXPECT_NEAR(LogprobOf(std::vector<float>{kInf, 5, kInf}, 2), -std::log(2.0), 1e-7);
  EXPECT_EQ(LogprobOf(std::vector<float>{kInf, 5, kInf}, 1), -kInf);
  EXPECT_TRUE(std::isnan(LogprobOf(std::vector<float>{1, kNan}, 0)));
}

TEST(ChoiceSeed, FirstIsTheSeedAndOthersDiffer) {
  EXPECT_EQ(ChoiceSeed(42, 0), 42u);
  EXPECT_NE(ChoiceSeed(42, 1), ChoiceSeed(42, 2));
  EXPECT_NE(ChoiceSeed(42, 1), 42u);
  EXPECT_NE(ChoiceSeed(42, 1), ChoiceSeed(43, 1));
}

TEST(ValidateSampling, NamesTheField) {
  EXPECT_TRUE(ValidateSampling(Params(0)).ok());
  EXPECT_TRUE(ValidateSampling(Params(2, 1, 1e-6f, 1.0f)).ok());
  const struct {
    SamplingParams params;
    const char* field;
  } kCases[] = {
      {Params(-0.1f), "temperature"},   {Params(kNan), "temperature"},
      {Params(kInf), "temperature"},    {Params(1, -1), "top_k"},
      {Params(1, 0, 0.0f), "top_p"},    {Params(1, 0, 1.01f), "top_p"},
      {Params(1, 0, kNan), "top_p"},    {Params(1, 0, 1, -0.1f), "min_p"},
      {Params(1, 0, 1, 1.1f), "min_p"}, {Params(1, 0, 1, kNan), "min_p"},
  };
  for (const auto& test : kCases) {
    const Status status = ValidateSampling(test.params);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with(test.field)) << status.message();
  }
}

}  // namespace
}  // namespace tandem
