#include "parallel/layout.h"

#include <fmt/format.h>

namespace tandem {

Result<Layout> Layout::Make(int tp_size, int dp_size) {
  const bool divides_segments =
      tp_size >= 1 && tp_size <= kNumSegments && kNumSegments % tp_size == 0;
  if (!divides_segments) {
    return InvalidArgument(
        fmt::format("tp size {} is refused: it must be 1, 2, 4, 8 or 16, because sums are added in "
                    "a fixed tree over {} "
                    "segments and a rank owns whole, equally many ones",
                    tp_size, kNumSegments));
  }
  if (dp_size < 1 || tp_size % dp_size != 0) {
    return InvalidArgument(
        fmt::format("dp size {} is refused: it must divide the tp size {}, because every replica "
                    "has equally many ranks",
                    dp_size, tp_size));
  }
  return Layout(tp_size, dp_size);
}

}  // namespace tandem
