#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

constexpr int kSizes[] = {1, 2, 4, 8, 16};

TEST(Layout, AcceptsExactlyThePowersOfTwoUpToTheSegments) {
  for (int tp = -1; tp <= 40; ++tp) {
    const bool allowed = tp == 1 || tp == 2 || tp == 4 || tp == 8 || tp == 16;
    EXPECT_EQ(Layout::Make(tp, 1).ok(), allowed) << tp;
  }
}

TEST(Layout, RefusalsNameTheReason) {
  const Status tp = Layout::Make(3, 1).status();
  EXPECT_EQ(tp.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(tp.message().find("tp size 3"), std::string::npos) << tp.message();
  EXPECT_NE(tp.message().find("1, 2, 4, 8 or 16"), std::string::npos) << tp.message();
  for (int dp : {-1, 0, 3, 8}) {
    const Status status = Layout::Make(4, dp).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("must divide the tp size 4"), std::string::npos)
        << status.message();
  }
}

TEST(Layout, EveryRankHasOnePlaceInOneReplica) {
  for (int tp : kSizes) {
    for (int dp : kSizes) {
      if (dp > tp) continue;
      const Layout layout = *Layout::Make(tp, dp);
      EXPECT_EQ(layout.attn_tp_size() * dp, tp);
      for (int rank = 0; rank < tp; ++rank) {
        EXPECT_EQ(layout.leader(layout.replica(rank)) + layout.attn_rank(rank), rank);
        EXPECT_LT(layout.attn_rank(rank), layout.attn_tp_size());
        EXPECT_LT(layout.replica(rank), dp);
      }
    }
  }
}

// What equal bits in all layouts rest on: a rank's units are its whole segments, whatever the
// layout.
TEST(Layout, UnitsOfARankAreTheUnionOfItsSegments) {
  for (int units = 0; units <= 40; ++units) {
    for (int count : kSizes) {
      int64_t next_unit = 0;
      int64_t next_segment = 0;
      for (int rank = 0; rank < count; ++rank) {
        const Range segments = SegmentsOf(rank, count);
        EXPECT_EQ(segments.begin, next_segment);
        EXPECT_EQ(segments.size(), kNumSegments / count);
        next_segment = segments.end;
        const Range owned = UnitsOfSegments(units, segments);
        EXPECT_EQ(owned, Share(units, rank, count))
            << units << " units, rank " << rank << "/" << count;
        EXPECT_EQ(owned.begin, next_unit);
        for (int64_t segment = segments.begin; segment < segments.end; ++segment) {
          const Range part = UnitsOfSegment(units, static_cast<int>(segment));
          EXPECT_EQ(part.begin, next_unit);
          EXPECT_GE(part.size(), 0);
          next_unit = part.end;
        }
        EXPECT_EQ(owned.end, next_unit);
      }
      EXPECT_EQ(next_segment, kNumSegments);
      EXPECT_EQ(next_unit, units);
    }
  }
}

}  // namespace
}  // namespace tandem
