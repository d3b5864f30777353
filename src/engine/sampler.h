// Chooses a token from one row of logits, and gives log-probabilities (DESIGN 6). Knows no
// requests: penalties, bias and masks are already in the row.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/status.h"
#include "engine/api.h"

// All functions are pure and thread-safe. Their results are a function of the arguments' bits:
// every sum has one order, and exp and log are ours (ops/math.h).
namespace tandem {

// One sampled row as it travels between ranks, as bytes. Unused entries are zero.
struct SampleResult {
  int32_t token = 0;  // -1: no token could be chosen
  float logprob = 0.0f;
  int32_t num_top = 0;
  int32_t top_token[kMaxTopLogprobs] = {};  // best first, ties by lowest id
  float top_logprob[kMaxTopLogprobs] = {};
};
static_assert(std::is_trivially_copyable_v<SampleResult>);
static_assert(sizeof(SampleResult) == 12 + 8 * kMaxTopLogprobs, "padding bytes would travel unset");

// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The Gumbel noise of one token at one position of a request: Philox keyed by the seed, counter
// (position, token / 4), lane token % 4. Between -3.14 and 22.88. REQUIRES: token >= 0.
double Gumbel(uint64_t seed, int64_t position, int32_t token);

// The token at `position` of a request. Temperature 0: the largest logit, lowest id on ties. Else
// the largest (l - max) / T + Gumbel(seed, position, token), lowest id on ties, over the tokens
// left by, in this order:
//   top_k  the k largest logits, lowest id first on ties;
//   top_p  of those, ordered likewise, the shortest prefix whose probability under softmax(l / T),
//   renormalised
//          over what top_k left, reaches top_p; at least one token;
//   min_p  of those, the ones at least min_p times as likely as the most likely.
// Logits of -infinity are masked tokens; those of +infinity are equally likely, and the only ones
// possible. -1 if nothing can be chosen: a NaN in the row, or every token masked. REQUIRES:
// ValidateSampling(params).ok().
int32_t SampleToken(std::span<const float> logits, const SamplingParams& params, int64_t position);

// ln softmax(logits)[token]: raw, before temperature. NaN if the row holds one. REQUIRES: token
// inside the row.
float LogprobOf(std::span<const float> logits, int32_t token);

// Sets all fields of `result`: the token, its logprob, and the `num_top` best tokens with theirs
// (fewer if the row is shorter). REQUIRES: token inside the row, 0 <= num_top <= kMaxTopLogprobs.
void FillLogprobs(std::span<const float> logits, int32_t token, int num_top, SampleResult& result);

// The seed of choice `index` of a request with several; that of choice 0 is `seed` itself.
uint64_t ChoiceSeed(uint64_t seed, int index);

// InvalidArgument naming the field: temperature finite and >= 0, top_k >= 0, top_p in (0, 1], min_p
// in [0, 1].
Status ValidateSampling(const SamplingParams& params);

}  // namespace tandem
