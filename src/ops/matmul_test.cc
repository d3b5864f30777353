#include "ops/matmul.h"

#include <gtest/gtest.h>

#include "ops/math.h"
#include "ops/test_kernels.h"
#include "ops/test_rows.h"
#include "parallel/layout.h"

namespace tandem {
namespace {

class Matmul : public KernelTest {};
class MatmulSegments : public KernelTest {};
class MatmulSegmentsDeathTest : public KernelTest {};
TANDEM_FOR_ALL_KERNELS(Matmul);
TANDEM_FOR_ALL_KERNELS(MatmulSegments);
TANDEM_FOR_ALL_KERNELS(MatmulSegmentsDeathTest);

constexpr int64_t kColumns[] = {0, 1, 7, 16, 17, 33, 53};
constexpr int64_t kDepths[] = {0, 1, 2, 31, 69};
constexpr WeightType kTypes[] = {WeightType::kBf16, WeightType::kFp32, WeightType::kFp8};
constexpr int64_t kRows[] = {0, 1, 5, 6, 7, 13, 33};

// Calls test(columns, depth, rows, type, workers) for all shapes, with 1..5 workers in turn.
template <typename Test>
void ForShapes(const Test& test) {
  int workers = 0;
  for (const int64_t columns : kColumns) {
    for (const int64_t depth : kDepths) {
      for (const int64_t rows : kRows) {
        for (const WeightType type : kTypes) {
          workers = workers % 5 + 1;
          SCOPED_TRACE(testing::Message() << columns << " columns, depth " << depth << ", " << rows
                                          << " rows, " << workers << " workers");
          test(columns, depth, rows, type, workers);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(Matmul, EveryOutputIsOneChain) {
  std::mt19937 rng(1);
  ForShapes([&](int64_t columns, int64_t depth, int64_t rows, WeightType type, int workers) {
    const PackedMatrix w = RandomMatrix(columns, depth, type, rng);
    TestRows x(rows, depth, rng), y(rows, columns);
    ForWorkers(workers, rng,
               [&](const Worker& worker) { kernels().matmul(w, x.in(), rows, y.out(), worker); });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < columns; ++n) {
        ASSERT_EQ(Bits(y.row(r)[n]), Bits(Chain(w, n, x.row(r), 0, depth))) << r << " " << n;
      }
    }
    EXPECT_TRUE(y.GuardsHold());
  });
}

TEST_P(Matmul, HeadsAreProductsOfTheirOwn) {
  std::mt19937 rng(2);
  ForShapes([&](int64_t columns, int64_t depth, int64_t rows, WeightType type, int workers) {
    const int64_t x_head = depth + 2, y_head = columns;
    for (const int heads : {0, 1, 3}) {
      std::vector<PackedMatrix> w;
      for (int h = 0; h < heads; ++h) w.push_back(RandomMatrix(columns, depth, type, rng));
      TestRows x(rows, heads * x_head, rng), y(rows, heads * y_head);
      ForWorkers(workers, rng, [&](const Worker& worker) {
        kernels().matmul_heads(w, x.in(), x_head, rows, y.out(), y_head, worker);
      });
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < heads * columns; ++i) {
          const int64_t h = i / columns, n = i % columns;
          ASSERT_EQ(Bits(y.row(r)[h * y_head + n]),
                    Bits(Chain(w[h], n, x.row(r) + h * x_head, 0, depth)));
        }
      }
      EXPECT_TRUE(y.GuardsHold());
    }
  });
}

TEST_P(Matmul, GateUpIsSiluOfOneChainTimesTheOther) {
  std::mt19937 rng(3);
  ForShapes([&](int64_t columns, int64_t depth, int64_t rows, WeightType type, int workers) {
    const PackedMatrix gate = RandomMatrix(columns, depth, type, rng);
    const PackedMatrix up = RandomMatrix(columns, depth, type, rng);
    TestRows x(rows, depth, rng), y(rows, columns);
    ForWorkers(workers, rng, [&](const Worker& worker) {
      kernels().gate_up(gate, up, x.in(), rows, y.out(), worker);
    });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < columns; ++n) {
        const float g = Chain(gate, n, x.row(r), 0, depth);
        const float u = Chain(up, n, x.row(r), 0, depth);
        ASSERT_EQ(Bits(y.row(r)[n]), Bits(g / (1.0f + Exp(-g)) * u));
      }
    }
    EXPECT_TRUE(y.GuardsHold());
  });
}

// Bounds of `ranks` ranks' segments over `depth` units, as loading makes them.
std::vector<int32_t> Bounds(int64_t depth, Range segments) {
  std::vector<int32_t> bounds;
  for (int64_t s = segments.begin; s <= segments.end; ++s) {
    bounds.push_back(
        static_cast<int32_t>(s * depth / kNumSegments - segments.begin * depth / kNumSegments));
  }
  return bounds;
}

TEST_P(MatmulSegments, IsTheTreeOverSixteenChains) {
  std::mt19937 rng(4);
  ForShapes([&](int64_t columns, int64_t depth, int64_t rows, WeightType type, int workers) {
    const PackedMatrix w = RandomMatrix(columns, depth, type, rng);
    const std::vector<int32_t> bounds = Bounds(depth, {0, kNumSegments});
    TestRows x(rows, depth, rng), y(rows, columns);
    ForWorkers(workers, rng, [&](const Worker& worker) {
      kernels().matmul_segments(w, bounds, x.in(), rows, y.out(), worker);
    });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < columns; ++n) {
        std::vector<float> parts;
        for (int s = 0; s < kNumSegments; ++s) {
          parts.push_back(Chain(w, n, x.row(r), bounds[s], bounds[s + 1]));
        }
        ASSERT_EQ(Bits(y.row(r)[n]), Bits(Tree(parts)));
      }
    }
    EXPECT_TRUE(y.GuardsHold());
  });
}

TEST_P(MatmulSegments, RanksOfAdjacentSegmentsMakeTheSameTree) {
  std::mt19937 rng(5);
  constexpr int64_t kOutputs = 19, kNumRows = 8;
  for (const WeightType type : kTypes) {
    for (const int64_t depth : {0, 1, 6, 15, 16, 50, 96}) {
      const PackedMatrix w = RandomMatrix(kOutputs, depth, type, rng);
      TestRows x(kNumRows, depth, rng), whole(kNumRows, kOutputs);
      kernels().matmul_segments(w, Bounds(depth, {0, kNumSegments}), x.in(), kNumRows, whole.out(),
                                {});
      for (const int ranks : {1, 2, 4, 8, 16}) {
        std::vector<TestRows> pieces;
        for (int rank = 0; rank < ranks; ++rank) {
          const Range segments = SegmentsOf(rank, ranks);
          const Range k = UnitsOfSegments(depth, segments);
          pieces.emplace_back(kNumRows, kOutputs);
          kernels().matmul_segments(PartOf(w, {0, kOutputs}, k), Bounds(depth, segments),
                                    {x.row(0) + k.begin, x.stride()}, kNumRows, pieces.back().out(),
                                    {});
          if (k.size() == 0) {
            EXPECT_EQ(Bits(pieces.back().row(0)[0]), 0u);
          }
        }
        for (int64_t i = 0; i < kNumRows * kOutputs; ++i) {
          std::vector<float> parts;
          for (TestRows& piece : pieces) parts.push_back(piece.row(i / kOutputs)[i % kOutputs]);
          ASSERT_EQ(Bits(Tree(parts)), Bits(whole.row(i / kOutputs)[i % kOutputs]))
              << depth << " deep on " << ranks << " ranks";
        }
      }
    }
  }
}

// A rank's columns begin anywhere, inside of panels and of scale blocks.
TEST_P(Matmul, APartOfTheColumnsGivesTheBitsOfTheWhole) {
  std::mt19937 rng(7);
  constexpr int64_t kOutputs = 83, kDepth = 45;
  for (int trial = 0; trial < 20; ++trial) {
    const PackedMatrix w = RandomMatrix(kOutputs, kDepth, WeightType::kFp8, rng);
    TestRows x(1, kDepth, rng), whole(1, kOutputs);
    kernels().matmul(w, x.in(), 1, whole.out(), {});
    for (const Range columns : {Range{0, 5}, Range{5, 40}, Range{40, 83}}) {
      TestRows part(1, columns.size());
      kernels().matmul(PartOf(w, columns, {0, kDepth}), x.in(), 1, part.out(), {});
      for (int64_t n = 0; n < columns.size(); ++n) {
        ASSERT_EQ(Bits(part.row(0)[n]), Bits(whole.row(0)[columns.begin + n]));
      }
    }
  }
}

// One vector and more, stored in part: the lanes behind the last column stay as they were.
TEST_P(Matmul, EveryTailOfColumns) {
  std::mt19937 rng(9);
  for (int64_t columns = 1; columns <= 33; ++columns) {
    for (const WeightType type : kTypes) {
      const PackedMatrix w = RandomMatrix(columns, 5, type, rng);
      TestRows x(1, 5, rng), y(1, columns);
      kernels().matmul(w, x.in(), 1, y.out(), {});
      EXPECT_TRUE(y.GuardsHold()) << columns;
      for (int64_t n = 0; n < columns; ++n) {
        ASSERT_EQ(Bits(y.row(0)[n]), Bits(Chain(w, n, x.row(0), 0, 5))) << columns;
      }
    }
  }
}

// Every code against the exact value: a row that picks one k at a time.
TEST_P(Matmul, Float8CodesAreExact) {
  PackedMatrix w(1, 256, WeightType::kFp8, {1, 256});
  for (int code = 0; code < 256; ++code) {
    w.Panel<uint8_t>(0)[code * kPanel] = static_cast<uint8_t>((code & 0x7f) == 0x7f ? 0 : code);
  }
  w.Scales(0)[0] = 0.75f;
  for (int code = 0; code < 256; ++code) {
    TestRows x(1, 256), y(1, 1);
    std::fill_n(x.row(0), 256, 0.0f);
    x.row(0)[code] = 3.0f;
    kernels().matmul(w, x.in(), 1, y.out(), {});
    ASSERT_EQ(y.row(0)[0], 3.0f * Element(w, 0, code)) << code;
  }
}

TEST_P(Matmul, GateAndUpMayHaveDifferentFormats) {
  std::mt19937 rng(8);
  constexpr int64_t kOutputs = 21, kDepth = 50;
  for (const WeightType gate_type : kTypes) {
    for (const WeightType up_type : kTypes) {
      const PackedMatrix gate = RandomMatrix(kOutputs, kDepth, gate_type, rng);
      const PackedMatrix up = RandomMatrix(kOutputs, kDepth, up_type, rng);
      TestRows x(2, kDepth, rng), y(2, kOutputs);
      kernels().gate_up(gate, up, x.in(), 2, y.out(), {});
      for (int64_t i = 0; i < 2 * kOutputs; ++i) {
        const int64_t r = i / kOutputs, n = i % kOutputs;
        const float g = Chain(gate, n, x.row(r), 0, kDepth), u = Chain(up, n, x.row(r), 0, kDepth);
        ASSERT_EQ(Bits(y.row(r)[n]), Bits(g / (1.0f + Exp(-g)) * u));
      }
    }
  }
}

TEST_P(Matmul, ARowDoesNotDependOnTheRowsBesideIt) {
  std::mt19937 rng(6);
  constexpr int64_t kOutputs = 40, kDepth = 77, kNumRows = 33;
  const PackedMatrix w = RandomMatrix(kOutputs, kDepth, WeightType::kBf16, rng);
  TestRows x(kNumRows, kDepth, rng), all(kNumRows, kOutputs), one(1, kOutputs);
  std::fill_n(x.row(7), kDepth, std::numeric_limits<float>::quiet_NaN());
  kernels().matmul(w, x.in(), kNumRows, all.out(), {});
  for (int64_t r = 0; r < kNumRows; ++r) {
    if (r == 7) continue;
    kernels().matmul(w, {x.row(r), x.stride()}, 1, one.out(), {});
    for (int64_t n = 0; n < kOutputs; ++n) ASSERT_EQ(Bits(one.row(0)[n]), Bits(all.row(r)[n]));
  }
}

TEST_P(MatmulSegmentsDeathTest, BoundsThatMissColumnsAreABug) {
  const PackedMatrix w(4, 10, WeightType::kFp32);
  const std::vector<int32_t> bounds = {0, 9};
  EXPECT_DEATH(kernels().matmul_segments(w, bounds, {nullptr, 0}, 0, {nullptr, 0}, {}),
               "CHECK failed");
}

}  // namespace
}  // namespace tandem
