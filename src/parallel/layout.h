// Arithmetic of tp/dp layouts: a rank's replica and its segments of sums. No threads.
#pragma once

#include "base/numeric.h"
#include "base/status.h"

namespace tandem {

// Sums that a layout splits are added in a binary tree over this many segments (DESIGN 7).
inline constexpr int kNumSegments = 16;

// World of tp_size ranks; dp_size replicas of attn_tp_size() adjacent ranks each.
class Layout {
 public:
  // Errors: tp_size not in {1, 2, 4, 8, 16}; dp_size not a divisor.
  static Result<Layout> Make(int tp_size, int dp_size);

  int tp_size() const { return tp_size_; }
  int dp_size() const { return dp_size_; }
  int attn_tp_size() const { return tp_size_ / dp_size_; }
  int replica(int rank) const { return rank / attn_tp_size(); }
  int attn_rank(int rank) const { return rank % attn_tp_size(); }
  int leader(int replica) const { return replica * attn_tp_size(); }

 private:
  Layout(int tp_size, int dp_size) : tp_size_(tp_size), dp_size_(dp_size) {}
  int tp_size_;
  int dp_size_;
};

// The segments that part `index` of `count` owns; `count` is a power of two up to kNumSegments.
inline Range SegmentsOf(int index, int count) {
  return Share(kNumSegments, index, count);
}

// The units (heads, K blocks, experts) of one segment: [iU/16, (i+1)U/16).
inline Range UnitsOfSegment(int64_t units, int segment) {
  return Share(units, segment, kNumSegments);
}

// All units of a range of adjacent segments.
inline Range UnitsOfSegments(int64_t units, Range segments) {
  return {segments.begin * units / kNumSegments, segments.end * units / kNumSegments};
}

}  // namespace tandem
