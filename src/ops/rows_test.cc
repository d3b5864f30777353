#include "ops/rows.h"

#include <gtest/gtest.h>

#include "ops/math.h"
#include "ops/test_kernels.h"
#include "ops/test_rows.h"

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Embedding, ReadsBothFormats) {
  std::mt19937 rng(1);
  constexpr int64_t kRows = 5, kColumns = 23;
  EmbeddingTable bf16{Buffer<std::byte>(kRows * kColumns * 2), WeightType::kBf16, kColumns};
  EmbeddingTable fp32{Buffer<std::byte>(kRows * kColumns * 4), WeightType::kFp32, kColumns};
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const BFloat16 value = BFloat16::FromFloat(RandomFloat(rng));
    reinterpret_cast<BFloat16*>(bf16.data.data())[i] = value;
    reinterpret_cast<float*>(fp32.data.data())[i] = value.ToFloat();
  }
  for (int64_t r = 0; r < kRows; ++r) {
    TestRows a(1, kColumns), b(1, kColumns);
    bf16.Read(r, a.row(0));
    fp32.Read(r, b.row(0));
    for (int64_t c = 0; c < kColumns; ++c) {
      EXPECT_EQ(Bits(a.row(0)[c]), Bits(b.row(0)[c]));
      EXPECT_EQ(a.row(0)[c], reinterpret_cast<float*>(fp32.data.data())[r * kColumns + c]);
    }
    EXPECT_TRUE(a.GuardsHold() && b.GuardsHold());
  }
}

class RmsNorm : public KernelTest {};
class AddPieces : public KernelTest {};
TANDEM_FOR_ALL_KERNELS(RmsNorm);
TANDEM_FOR_ALL_KERNELS(AddPieces);

// Sixteen chains, lane i taking x[i], x[i + 16], ...; lanes added by halving.
float ReferenceScale(const float* x, int64_t size, float eps) {
  std::vector<float> lanes(16, 0.0f);
  for (int64_t i = 0; i < size; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return 1.0f / std::sqrt(lanes[0] / static_cast<float>(size) + eps);
}

TEST_P(RmsNorm, AddsInSixteenLanes) {
  std::mt19937 rng(2);
  for (const int64_t size : {1, 2, 15, 16, 17, 31, 72, 128, 201}) {
    TestRows x(1, size, rng), weight(1, size, rng), y(1, size);
    kernels().rms_norm(x.row(0), weight.row(0), size, 1e-6f, y.row(0));
    const float scale = ReferenceScale(x.row(0), size, 1e-6f);
    double mean = 0;
    for (int64_t i = 0; i < size; ++i) mean += double{x.row(0)[i]} * x.row(0)[i] / size;
    for (int64_t i = 0; i < size; ++i) {
      EXPECT_EQ(Bits(y.row(0)[i]), Bits(x.row(0)[i] * scale * weight.row(0)[i])) << size;
      EXPECT_NEAR(y.row(0)[i], x.row(0)[i] / std::sqrt(mean + 1e-6) * weight.row(0)[i], 2e-6);
    }
    EXPECT_TRUE(y.GuardsHold());
    kernels().rms_norm(x.row(0), weight.row(0), size, 1e-6f, x.row(0));  // in place
    for (int64_t i = 0; i < size; ++i) EXPECT_EQ(Bits(x.row(0)[i]), Bits(y.row(0)[i]));
  }
}

TEST_P(AddPieces, AddsTheTreeOverPartsToTheRow) {
  std::mt19937 rng(3);
  constexpr int64_t kRows = 3;
  for (const int64_t size : {1, 15, 16, 17, 40, 72}) {
    for (const int parts : {1, 2, 4, 8, 16}) {
      for (const bool two_sums : {false, true}) {
        std::vector<TestRows> pieces;
        std::vector<const float*> starts;
        for (int p = 0; p < parts; ++p) pieces.emplace_back(kRows, two_sums ? 2 * size : size, rng);
        for (TestRows& piece : pieces) starts.push_back(piece.row(0));
        TestRows x(kRows, size, rng), before = x;
        for (int64_t r = 0; r < kRows; ++r) {
          kernels().add_pieces(starts, pieces[0].stride(), size, two_sums, r, x.row(r));
          for (int64_t i = 0; i < size; ++i) {
            std::vector<float> first, second;
            for (TestRows& piece : pieces) {
              first.push_back(piece.row(r)[i]);
              if (two_sums) second.push_back(piece.row(r)[size + i]);
            }
            const float sum = two_sums ? Tree(first) + Tree(second) : Tree(first);
            ASSERT_EQ(Bits(x.row(r)[i]), Bits(before.row(r)[i] + sum)) << size << " of " << parts;
          }
        }
        EXPECT_TRUE(x.GuardsHold());
      }
    }
  }
}

TEST(RowsOfWorker, CoverEveryRowOnce) {
  for (int64_t rows : {0, 1, 5, 13}) {
    int64_t next = 0;
    for (int thread = 0; thread < 5; ++thread) {
      const Range own = RowsOfWorker(rows, {thread, 5});
      EXPECT_EQ(own.begin, next);
      next = own.end;
    }
    EXPECT_EQ(next, rows);
  }
}

// ---- Router ----

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Chosen Choose(const RouterChoice& choice, const std::vector<float>& logits) {
  Chosen chosen{std::vector<int32_t>(choice.top_k), std::vector<float>(choice.top_k)};
  ChooseExperts(choice, logits.data(), chosen.ids.data(), chosen.weights.data());
  return chosen;
}

std::vector<float> ReferenceScores(RouterScoring scoring, const std::vector<float>& logits) {
  std::vector<float> scores;
  float sum = 0.0f;
  const float maximum = *std::max_element(logits.begin(), logits.end());
  for (const float x : logits) {
    const bool softmax = scoring == RouterScoring::kSoftmax;
    scores.push_back(softmax ? Exp(x - maximum) : 1.0f / (1.0f + Exp(-x)));
    sum += scores.back();
  }
  if (scoring == RouterScoring::kSoftmax) {
    for (float& x : scores) x /= sum;
  }
  return scores;
}

// Sorts instead of searching, as MODEL.md 2.4 tells it.
Chosen Reference(const RouterChoice& choice, const std::vector<float>& logits) {
  const int size = choice.num_experts / choice.num_groups;
  const std::vector<float> scores = ReferenceScores(choice.scoring, logits);
  std::vector<float> biased;
  for (int e = 0; e < choice.num_experts; ++e) {
    biased.push_back(scores[e] + (choice.bias != nullptr ? choice.bias[e] : 0.0f));
  }
  std::vector<std::pair<float, int>> groups;  // (- score, number): sorted, the best come first
  for (int g = 0; g < choice.num_groups; ++g) {
    std::vector<float> best(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(best.begin(), best.end(), std::greater<>());
    const bool two = choice.group_score == GroupScore::kTwoBest && size > 1;
    groups.emplace_back(-(best[0] + (two ? best[1] : 0.0f)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<float, int>> experts;
  for (int i = 0; i < choice.top_groups; ++i) {
    const int g = groups[i].second;
    for (int e = g * size; e < (g + 1) * size; ++e) experts.emplace_back(-biased[e], e);
  }
  std::sort(experts.begin(), experts.end());
  Chosen chosen;
  float sum = 0.0f;
  for (int i = 0; i < choice.top_k; ++i) sum += scores[experts[i].second];
  for (int i = 0; i < choice.top_k; ++i) {
    float weight = scores[experts[i].second];
    if (choice.normalize) weight /= sum + 1e-20f;
    const bool scaled = choice.scale_after_normalize || !choice.normalize;
    chosen.ids.push_back(experts[i].second);
    chosen.weights.push_back(scaled ? weight * choice.scale : weight);
  }
  return chosen;
}

TEST(ChooseExperts, AgreesWithSortingAlsoInTies) {
  std::mt19937 rng(4);
  const RouterChoice kShapes[] = {{16, 4, 2, 4}, {12, 3, 2, 3}, {12, 1, 1, 5}, {8, 8, 3, 3},
                                  {6, 2, 2, 6},  {40, 5, 1, 8}, {1, 1, 1, 1}};
  for (RouterChoice choice : kShapes) {
    for (int trial = 0; trial < 1000; ++trial) {
      std::vector<float> logits(choice.num_experts), bias(choice.num_experts);
      // Odd trials draw from four values: most scores tie, within groups and between them.
      for (float& x : logits) x = trial % 2 ? static_cast<float>(rng() % 4) : 4 * RandomFloat(rng);
      for (float& x : bias)
        x = trial % 2 ? -0.5f * static_cast<float>(rng() % 2) : RandomFloat(rng);
      choice.bias = trial % 3 ? bias.data() : nullptr;
      choice.normalize = trial % 5 > 1;
      choice.scale = trial % 7 ? 2.5f : 1.0f;
      choice.scoring = trial / 2 % 2 ? RouterScoring::kSoftmax : RouterScoring::kSigmoid;
      choice.group_score = trial / 4 % 2 ? GroupScore::kBest : GroupScore::kTwoBest;
      choice.scale_after_normalize = trial / 8 % 2;
      const Chosen got = Choose(choice, logits), expected = Reference(choice, logits);
      ASSERT_EQ(got.ids, expected.ids) << choice.num_experts << " experts, trial " << trial;
      for (int i = 0; i < choice.top_k; ++i) {
        ASSERT_EQ(Bits(got.weights[i]), Bits(expected.weights[i]));
      }
    }
  }
}

RouterChoice V2Choice(int num_experts, int num_groups, int top_groups, int top_k) {
  RouterChoice choice{num_experts, num_groups, top_groups, top_k};
  choice.scoring = RouterScoring::kSoftmax;
  choice.group_score = GroupScore::kBest;
  choice.scale_after_normalize = false;
  choice.scale = 16.0f;
  return choice;
}

// Logits of log 1, 2, 4, 9: a softmax of sixteenths.
TEST(ChooseExperts, SoftmaxOfV2) {
  const float log2 = std::log(2.0f), log9 = std::log(9.0f);
  const std::vector<float> logits = {0, log2, 2 * log2, log9};
  RouterChoice greedy = V2Choice(4, 1, 1, 2);
  greedy.normalize = false;
  Chosen chosen = Choose(greedy, logits);
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{3, 2}));
  EXPECT_NEAR(chosen.weights[0], 9, 1e-5);
  EXPECT_NEAR(chosen.weights[1], 4, 1e-5);
  greedy.normalize = true;  // and not scaled
  chosen = Choose(greedy, logits);
  EXPECT_NEAR(chosen.weights[0], 9.0 / 13, 1e-6);
  EXPECT_NEAR(chosen.weights[1], 4.0 / 13, 1e-6);
}

// The best expert's group has the worse second one: V2 keeps it, V3's rule would not.
TEST(ChooseExperts, GroupsByTheirBestOrByTheirTwoBest) {
  const std::vector<float> logits = {2.5f, -9, 2, 2};
  RouterChoice choice = V2Choice(4, 2, 1, 2);
  EXPECT_EQ(Choose(choice, logits).ids, (std::vector<int32_t>{0, 1}));
  choice.scoring = RouterScoring::kSigmoid;
  choice.group_score = GroupScore::kTwoBest;
  EXPECT_EQ(Choose(choice, logits).ids, (std::vector<int32_t>{2, 3}));
}

TEST(ChooseExperts, WeightsComeFromSigmoidsWithoutBias) {
  const std::vector<float> bias = {-3, -2, -5, -4};
  RouterChoice choice{4, 2, 1, 2};
  choice.bias = bias.data();
  // With scores this negative, a mask of 0 instead of minus infinity would choose a dropped group.
  const Chosen chosen = Choose(choice, {1, 0, 20, 20});
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{1, 0}));
  const double one = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(chosen.weights[0], 0.5 / (0.5 + one), 1e-6);
  EXPECT_NEAR(chosen.weights[1], one / (0.5 + one), 1e-6);
}

TEST(ChooseExperts, ExtremeLogitsChooseDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  RouterChoice choice{4, 2, 1, 2};
  EXPECT_EQ(Choose(choice, {-kInf, 1e30f, kInf, 200.0f}).ids, (std::vector<int32_t>{2, 3}));
  for (const RouterChoice& any : {choice, V2Choice(4, 2, 1, 2), V2Choice(4, 1, 1, 2)}) {
    EXPECT_EQ(Choose(any, {-kInf, -kInf, -kInf, -kInf}).ids, (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(Choose(any, {0.0f, 1e30f, -1e30f, 200.0f}).ids[0], 1);
    for (const std::vector<float>& logits :
         {std::vector<float>{nan, nan, nan, nan}, {0, nan, 1, 2}, {kInf, kInf, kInf, nan}}) {
      const Chosen chosen = Choose(any, logits);
      EXPECT_NE(chosen.ids[0], chosen.ids[1]);
    }
  }
}

}  // namespace
}  // namespace tandem
