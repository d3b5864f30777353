// What a model's weights need in memory and how many parameters they are: plain numbers, counted
// without loading.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/matmul.h"

namespace tandem {

enum class WeightGroup {
  kEmbedding,
  kAttention,  // all projections
  kDenseMlp,
  kSharedExperts,
  kRoutedExperts,
  kRouterAndNorms,
  kHead,
  kMtp,  // everything of the MTP modules
  kRotary,
};
inline constexpr int kNumWeightGroups = 9;
inline constexpr std::array<const char*, kNumWeightGroups> kWeightGroupNames = {
    "embedding",        "attention", "dense MLP",   "shared experts", "routed experts",
    "router and norms", "head",      "MTP modules", "rotary tables"};

// Whether and how MTP modules are there.
enum class MtpState {
  kNone,     // config.json announces none
  kAbsent,   // announced, but the checkpoint has no tensor of them
  kLeftOut,  // there, and not asked for
  kLoaded,
};

// Scales of FP8 blocks are no parameters; a tensor that ranks or modules share is counted once.
struct ParameterCount {
  int64_t total = 0;
  // Of one token's pass: all but the routed experts that it does not choose.
  int64_t active = 0;
};

struct WeightPlan {
  MtpState mtp = MtpState::kNone;
  // Bytes held by all ranks together. Scales count to FP8.
  std::array<int64_t, kNumWeightGroups> group_bytes{};  // by WeightGroup
  std::array<int64_t, 3> format_bytes{};                // by WeightType
  // What only one rank uses; what several use, once.
  std::vector<int64_t> rank_bytes;
  int64_t shared_bytes = 0;
  ParameterCount target, mtp_modules;

  int64_t bytes(WeightGroup group) const { return group_bytes[static_cast<int>(group)]; }
  int64_t bytes(WeightType type) const { return format_bytes[static_cast<int>(type)]; }
  int64_t total_bytes() const {
    int64_t total = 0;
    for (const int64_t bytes : group_bytes) total += bytes;
    return total;
  }
};

}  // namespace tandem
