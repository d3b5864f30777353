#include "ops/experts.h"

#include <gtest/gtest.h>

#include "ops/math.h"
#include "ops/test_kernels.h"
#include "ops/test_rows.h"
#include "parallel/layout.h"

namespace tandem {
namespace {

TEST(GroupByExpert, PairsOfAnExpertAreAdjacentRowsAscending) {
  // Three rows of two choices, behind each other with a gap; row 1 is masked.
  const std::vector<int32_t> ids = {5, 2, 99, -1, -1, 99, 2, 4, 99};
  const std::vector<float> weights = {0.5f, 0.25f, 9, 7, 7, 9, 0.75f, 1.0f, 9};
  ExpertGroups groups;
  groups.Reserve(4, 6);
  GroupByExpert(ids.data(), weights.data(), 3, 3, 2, {2, 6}, groups);
  EXPECT_EQ(groups.begin, (std::vector<int32_t>{0, 2, 2, 3, 4}));
  EXPECT_EQ(groups.rows[0], 0);
  EXPECT_EQ(groups.rows[1], 2);
  EXPECT_EQ(groups.weights[0], 0.25f);
  EXPECT_EQ(groups.weights[1], 0.75f);
  EXPECT_EQ(groups.rows[2], 2);
  EXPECT_EQ(groups.weights[2], 1.0f);
  EXPECT_EQ(groups.rows[3], 0);
  EXPECT_EQ(groups.weights[3], 0.5f);
}

TEST(GroupByExpert, GroupsAreMadeAnewEachTime) {
  ExpertGroups groups;
  groups.Reserve(3, 4);
  const std::vector<int32_t> first = {0, 2, 1, 2}, second = {1, 3};
  const std::vector<float> weights(4, 1.0f);
  GroupByExpert(first.data(), weights.data(), 2, 2, 2, {0, 3}, groups);
  EXPECT_EQ(groups.begin, (std::vector<int32_t>{0, 1, 2, 4}));
  GroupByExpert(second.data(), weights.data(), 2, 1, 2, {0, 3}, groups);
  EXPECT_EQ(groups.begin, (std::vector<int32_t>{0, 0, 1, 1}));
  GroupByExpert(nullptr, nullptr, 2, 0, 2, {0, 3}, groups);
  EXPECT_EQ(groups.begin, (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(GroupByExpert, ARankWithoutExpertsGetsNoPair) {
  ExpertGroups groups;
  groups.Reserve(0, 0);
  const std::vector<int32_t> ids = {0, 2, 1, 2};
  GroupByExpert(ids.data(), nullptr, 2, 2, 2, {2, 2}, groups);
  EXPECT_EQ(groups.begin, (std::vector<int32_t>{0}));
}

class Experts : public KernelTest {};
TANDEM_FOR_ALL_KERNELS(Experts);

constexpr int64_t kHidden = 37, kWidth = 21;

struct Model {
  Model(int num_experts, WeightType up, WeightType down, std::mt19937& rng) {
    for (int e = 0; e < num_experts; ++e) {
      experts.push_back({RandomMatrix(kWidth, kHidden, up, rng),
                         RandomMatrix(kWidth, kHidden, up, rng),
                         RandomMatrix(kHidden, kWidth, down, rng)});
    }
  }
  std::vector<ExpertWeights> experts;
};

// Every row's choices; about one row in five is masked.
struct Choices {
  Choices(int64_t rows, int num_experts, int k, std::mt19937& rng) : top_k(k) {
    std::vector<int32_t> all(num_experts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r < rows; ++r) {
      std::shuffle(all.begin(), all.end(), rng);
      const bool masked = rng() % 5 == 0;
      for (int i = 0; i < k; ++i) {
        ids.push_back(masked ? -1 : all[i]);
        weights.push_back(RandomFloat(rng));
      }
    }
  }

  // The row's weight of an expert; NaN if it was not chosen.
  float WeightOf(int64_t row, int expert) const {
    for (int i = 0; i < top_k; ++i) {
      if (ids[row * top_k + i] == expert) return weights[row * top_k + i];
    }
    return std::numeric_limits<float>::quiet_NaN();
  }

  int top_k;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// The rank's part of the routed sums [rows][kHidden], with `workers` workers.
TestRows RunRank(const Kernels& kernels, Model& model, const Choices& choices, TestRows& x,
                 int64_t rows, Range segments, int workers, std::mt19937& rng) {
  const int64_t num_experts = static_cast<int64_t>(model.experts.size());
  const Range local = UnitsOfSegments(num_experts, segments);
  std::vector<int32_t> bounds;
  for (int64_t s = segments.begin; s <= segments.end; ++s) {
    bounds.push_back(static_cast<int32_t>(s * num_experts / kNumSegments - local.begin));
  }
  const std::span<const ExpertWeights> own =
      std::span(model.experts).subspan(local.begin, local.size());
  ExpertGroups groups;
  groups.Reserve(local.size(), rows * choices.top_k);
  GroupByExpert(choices.ids.data(), choices.weights.data(), choices.top_k, rows, choices.top_k,
                local, groups);
  TestRows activations(groups.begin.back(), kWidth), y(rows, kHidden);
  ForWorkers(workers, rng, [&](const Worker& worker) {
    kernels.experts_gate_up(own, groups, x.in(), activations.out(), worker);
  });
  ForWorkers(workers, rng, [&](const Worker& worker) {
    kernels.experts_down(own, bounds, groups, activations.out(), rows, kHidden, y.out(), worker);
  });
  EXPECT_TRUE(activations.GuardsHold());
  EXPECT_TRUE(y.GuardsHold());
  return y;
}

std::vector<float> ExpertOutput(const ExpertWeights& expert, const float* x) {
  std::vector<float> activation(kWidth), y(kHidden);
  for (int64_t c = 0; c < kWidth; ++c) {
    const float g = Chain(expert.gate, c, x, 0, kHidden), u = Chain(expert.up, c, x, 0, kHidden);
    activation[c] = g / (1.0f + Exp(-g)) * u;
  }
  for (int64_t c = 0; c < kHidden; ++c) y[c] = Chain(expert.down, c, activation.data(), 0, kWidth);
  return y;
}

// The routed sum of one row in the documented order.
std::vector<float> RoutedSum(const Model& model, const Choices& choices, const float* x,
                             int64_t row) {
  std::vector<std::vector<float>> segments(kHidden, std::vector<float>(kNumSegments, 0.0f));
  for (int s = 0; s < kNumSegments; ++s) {
    const Range own = UnitsOfSegment(static_cast<int64_t>(model.experts.size()), s);
    for (int64_t e = own.begin; e < own.end; ++e) {
      const float weight = choices.WeightOf(row, static_cast<int>(e));
      if (std::isnan(weight)) continue;
      const std::vector<float> y = ExpertOutput(model.experts[e], x);
      for (int64_t c = 0; c < kHidden; ++c) segments[c][s] = std::fma(weight, y[c], segments[c][s]);
    }
  }
  std::vector<float> sum;
  for (const std::vector<float>& parts : segments) sum.push_back(Tree(parts));
  return sum;
}

TEST_P(Experts, EveryLayoutGivesTheBitsOfTheReference) {
  std::mt19937 rng(1);
  int workers = 0;
  constexpr std::pair<WeightType, WeightType> kTypes[] = {{WeightType::kBf16, WeightType::kBf16},
                                                          {WeightType::kFp32, WeightType::kFp32},
                                                          {WeightType::kFp8, WeightType::kFp8},
                                                          {WeightType::kFp8, WeightType::kBf16}};
  for (const auto& [up, down] : kTypes) {
    for (const int num_experts : {3, 12, 16, 40}) {
      Model model(num_experts, up, down, rng);
      for (const int64_t rows : {0, 1, 7, 33}) {
        const Choices choices(rows, num_experts, 3, rng);
        TestRows x(rows, kHidden, rng);
        std::vector<std::vector<float>> expected;
        for (int64_t r = 0; r < rows; ++r) {
          expected.push_back(RoutedSum(model, choices, x.row(r), r));
        }
        for (const int ranks : {1, 2, 4, 8, 16}) {
          std::vector<TestRows> pieces;
          for (int rank = 0; rank < ranks; ++rank) {
            workers = workers % 5 + 1;
            pieces.push_back(
                RunRank(kernels(), model, choices, x, rows, SegmentsOf(rank, ranks), workers, rng));
          }
          for (int64_t i = 0; i < rows * kHidden; ++i) {
            std::vector<float> parts;
            for (TestRows& piece : pieces) parts.push_back(piece.row(i / kHidden)[i % kHidden]);
            ASSERT_EQ(Bits(Tree(parts)), Bits(expected[i / kHidden][i % kHidden]))
                << num_experts << " experts on " << ranks << " ranks, row " << i / kHidden;
          }
        }
      }
    }
  }
}

TEST_P(Experts, RowsWithoutLocalExpertsGivePlusZero) {
  std::mt19937 rng(2);
  Model model(12, WeightType::kBf16, WeightType::kBf16, rng);
  Choices choices(6, 12, 2, rng);
  std::fill(choices.ids.begin(), choices.ids.end(), 11);  // of the last rank
  std::fill_n(choices.ids.begin() + 4, 2, -1);            // row 2 is masked
  for (size_t i = 0; i < choices.ids.size(); i += 2) choices.ids[i] = -1;
  TestRows x(6, kHidden, rng);
  for (const int ranks : {1, 4, 16}) {
    for (int rank = 0; rank < ranks; ++rank) {
      TestRows y = RunRank(kernels(), model, choices, x, 6, SegmentsOf(rank, ranks), 2, rng);
      for (int64_t r = 0; r < 6; ++r) {
        const bool zero = rank + 1 < ranks || r == 2;
        for (int64_t c = 0; c < kHidden; ++c) EXPECT_EQ(Bits(y.row(r)[c]) == 0, zero);
      }
    }
  }
}

TEST(GroupByExpertDeathTest, MorePairsThanReservedIsABug) {
  ExpertGroups groups;
  groups.Reserve(2, 1);
  const std::vector<int32_t> ids = {0, 1};
  const std::vector<float> weights = {1, 1};
  EXPECT_DEATH(GroupByExpert(ids.data(), weights.data(), 2, 1, 2, {0, 2}, groups), "CHECK failed");
}

}  // namespace
}  // namespace tandem
