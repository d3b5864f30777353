#include "ops/experts.h"

#include <algorithm>

namespace tandem {

void ExpertGroups::Reserve(int64_t num_local_experts, int64_t max_pairs) {
  begin.resize(num_local_experts + 1);
  rows.resize(max_pairs);
  weights.resize(max_pairs);
}

void GroupByExpert(const int32_t* ids, const float* weights, int64_t stride, int64_t rows,
                   int top_k, Range local, ExpertGroups& groups) {
  std::vector<int32_t>& begin = groups.begin;
  std::fill(begin.begin(), begin.end(), 0);
  const auto for_pairs = [&](const auto& visit) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int i = 0; i < top_k; ++i) {
        const int32_t expert = ids[row * stride + i];
        if (expert >= local.begin && expert < local.end) {
          visit(expert - local.begin, row, weights[row * stride + i]);
        }
      }
    }
  };
  for_pairs([&](int64_t expert, int64_t, float) { ++begin[expert + 1]; });
  for (size_t e = 1; e < begin.size(); ++e) begin[e] += begin[e - 1];
  CHECK(static_cast<size_t>(begin.back()) <= groups.rows.size());
  // begin[e] walks to the start of e + 1 while pairs are placed, and is set back after.
  for_pairs([&](int64_t expert, int64_t row, float weight) {
    const int32_t place = begin[expert]++;
    groups.rows[place] = static_cast<int32_t>(row);
    groups.weights[place] = weight;
  });
  for (size_t e = begin.size() - 1; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

}  // namespace tandem
