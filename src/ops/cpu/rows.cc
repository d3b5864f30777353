#include "ops/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/panel.h"
#include "ops/math.h"

namespace tandem {
namespace {

// Lanes of a sum over one row: fixed, so that every instruction set adds in one order.
constexpr int64_t kLanes = 16;

// One piece per rank, and ranks share 16 segments of sums (DESIGN 7).
constexpr size_t kMaxPieces = 16;

float TreeOfLanes(float* lanes) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

float SumOfSquares(const float* x, int64_t size) {
  alignas(64) float lanes[kLanes];
  Vec16 sum = Vec16::Zero();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vec16 v = Vec16::Load(x + i);
    sum = Fma(v, v, sum);
  }
  sum.Store(lanes);
  for (int64_t lane = 0; i < size; ++i, ++lane) lanes[lane] = std::fma(x[i], x[i], lanes[lane]);
  return TreeOfLanes(lanes);
}

// Binary tree over the first n columns at `at` of every piece; the other lanes are zeros.
Vec16 TreeOfPieces(std::span<const float* const> pieces, int64_t at, int64_t n) {
  Vec16 parts[kMaxPieces];
  for (size_t p = 0; p < pieces.size(); ++p) parts[p] = Vec16::Load(pieces[p] + at, n);
  for (size_t count = pieces.size() / 2; count > 0; count /= 2) {
    for (size_t i = 0; i < count; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
  }
  return parts[0];
}

std::vector<float> Scores(RouterScoring scoring, std::span<const float> logits) {
  std::vector<float> scores(logits.begin(), logits.end());
  if (scoring == RouterScoring::kSigmoid) {
    for (float& x : scores) x = 1.0f / (1.0f + Exp(-x));
    return scores;
  }
  const float maximum = *std::max_element(scores.begin(), scores.end());
  float sum = 0.0f;
  for (float& x : scores) {
    x = Exp(x - maximum);
    sum += x;
  }
  for (float& x : scores) x /= sum;
  return scores;
}

float ScoreOfGroup(GroupScore kind, std::span<const float> biased) {
  float best = -std::numeric_limits<float>::infinity();
  float second = best;
  for (const float x : biased) {
    if (x > best) {
      second = best;
      best = x;
    } else if (x > second) {
      second = x;
    }
  }
  return kind == GroupScore::kTwoBest && biased.size() > 1 ? best + second : best;
}

// The groups that are worth most; ties keep the lower group.
std::vector<bool> KeptGroups(const RouterChoice& choice, std::span<const float> biased) {
  const int size = choice.num_experts / choice.num_groups;
  std::vector<float> score;
  for (int g = 0; g < choice.num_groups; ++g) {
    score.push_back(ScoreOfGroup(choice.group_score, biased.subspan(g * size, size)));
  }
  std::vector<bool> kept(choice.num_groups, false);
  for (int n = 0; n < choice.top_groups; ++n) {
    int best = -1;
    for (int g = 0; g < choice.num_groups; ++g) {
      if (!kept[g] && (best < 0 || score[g] > score[best])) best = g;
    }
    kept[best] = true;
  }
  return kept;
}

}  // namespace

void EmbeddingTable::Read(int64_t row, float* out) const {
  if (type == WeightType::kBf16) {
    const BFloat16* source = reinterpret_cast<const BFloat16*>(data.data()) + row * columns;
    for (int64_t i = 0; i < columns; ++i) out[i] = source[i].ToFloat();
  } else {
    std::memcpy(out, reinterpret_cast<const float*>(data.data()) + row * columns,
                columns * sizeof(float));
  }
}

void RmsNorm(const float* x, const float* weight, int64_t size, float eps, float* y) {
  const float mean = SumOfSquares(x, size) / static_cast<float>(size);
  const float scale = 1.0f / std::sqrt(mean + eps);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    (Vec16::Load(x + i) * Vec16::Broadcast(scale) * Vec16::Load(weight + i)).Store(y + i);
  }
  for (; i < size; ++i) y[i] = x[i] * scale * weight[i];
}

void AddPieces(std::span<const float* const> pieces, int64_t stride, int64_t size, bool two_sums,
               int64_t row, float* x) {
  CHECK(std::has_single_bit(pieces.size()) && pieces.size() <= kMaxPieces);
  const int64_t begin = row * stride;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = std::min(kLanes, size - i);
    Vec16 sum = TreeOfPieces(pieces, begin + i, n);
    if (two_sums) sum = sum + TreeOfPieces(pieces, begin + size + i, n);
    (Vec16::Load(x + i, n) + sum).Store(x + i, n);
  }
}

void ChooseExperts(const RouterChoice& choice, const float* logits, int32_t* ids, float* weights) {
  const int n = choice.num_experts;
  const std::vector<float> scores = Scores(choice.scoring, {logits, static_cast<size_t>(n)});
  std::vector<float> biased = scores;
  if (choice.bias != nullptr) {
    for (int e = 0; e < n; ++e) biased[e] += choice.bias[e];
  }
  std::vector<bool> kept(1, true);
  if (choice.num_groups > 1) kept = KeptGroups(choice, biased);
  const int group_size = n / choice.num_groups;
  std::vector<bool> taken(n, false);
  float sum = 0.0f;
  for (int i = 0; i < choice.top_k; ++i) {
    int best = -1;
    for (int e = 0; e < n; ++e) {
      if (taken[e] || !kept[e / group_size]) continue;
      if (best < 0 || biased[e] > biased[best]) best = e;
    }
    CHECK(best >= 0);
    taken[best] = true;
    ids[i] = best;
    weights[i] = scores[best];
    sum += scores[best];
  }
  for (int i = 0; i < choice.top_k; ++i) {
    if (choice.normalize) weights[i] /= sum + 1e-20f;
    if (!choice.normalize || choice.scale_after_normalize) weights[i] *= choice.scale;
  }
}

}  // namespace tandem
