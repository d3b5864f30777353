#include "ops/rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/math.h"

namespace tandem {
namespace {

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
