// The plain-value messages between the engine and whoever feeds it (server, generate): requests,
// token events, cancel, status. Nothing here points into the engine, so the engine can become
// another process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

// How a token is chosen (DESIGN 6). temperature 0 = greedy; top_k 0 = off; top_p 1 = off; min_p 0 =
// off.
struct SamplingParams {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
};

// Most alternatives that logprobs may ask for (the API's limit).
inline constexpr int kMaxTopLogprobs = 20;

// A year, in seconds: keeps deadlines inside the clock's range.
inline constexpr double kLongestTimeout = 365.0 * 24 * 3600;

struct GenerationRequest {
  uint64_t id = 0;                      // chosen by the caller, unique while outstanding
  std::vector<int32_t> prompt;          // token ids, at least one, each below vocab_size
  int32_t max_tokens = 0;               // at least 1; the context length cuts it silently
  int32_t min_tokens = 0;               // no stop token is chosen before; at most max_tokens
  SamplingParams sampling;              // seed already drawn by the caller
  std::vector<int32_t> stop_token_ids;  // EOS ids are put here by the caller, unless ignore_eos
  int32_t logprobs = -1;                // -1: none; n >= 0: the token's and those of the n best
  int32_t prompt_logprobs = -1;         // the same for prompt tokens 1..
  std::optional<int32_t> data_parallel_rank;  // the replica to use; absent: the least loaded
  int64_t arrival_step = 0;    // the step before which the scheduler gets it; 0 = at once
  double timeout_seconds = 0;  // until it ends with kTimeout, running or not; 0 = never
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kTimeout, kError };

// Of raw logits, before temperature. `top` is best first, ties by lowest id.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;
};

// Counters of one request since it started. A verify step is a step whose window held at least one
// draft.
struct RequestStatistics {
  int64_t steps = 0;        // steps that computed rows of this request
  int32_t preemptions = 0;  // how often it lost its blocks and computed its rows again
  int64_t verify_steps = 0;
  int64_t drafted = 0;         // drafts in verified windows
  int64_t accepted = 0;        // drafts that became tokens, counted after stop rules cut
  int64_t verify_emitted = 0;  // tokens emitted by verify steps
  std::vector<int64_t> accepted_per_position;  // [k]: how often draft i became a token
  std::vector<int32_t> accepted_per_step;      // one number per verify step, in order

  // Tokens emitted by verify steps / verify steps; 0 when there were none.
  double accept_length() const {
    return verify_steps == 0 ? 0.0 : static_cast<double>(verify_emitted) / verify_steps;
  }
};

// What one step did for one request. Events of a request arrive in order; the last one has a
// finish_reason.
struct TokenEvent {
  uint64_t request_id = 0;
  int64_t step = 0;                           // the engine's step counter
  std::vector<int32_t> tokens;                // emitted by this step; the stop token included
  std::vector<TokenLogprob> logprobs;         // one per token if asked for, else empty
  std::vector<TokenLogprob> prompt_logprobs;  // of prompt rows finished in this step, in order
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;             // why, if kError
  RequestStatistics statistics;  // filled in the last event of a request
};

// What one replica is doing; a copy, from after its last step.
struct ReplicaStatus {
  int32_t running = 0;
  int32_t queued = 0;
  int64_t kv_tokens_used = 0;  // tokens of allocated blocks
  int64_t kv_tokens_total = 0;
  int64_t drafted = 0, accepted = 0, verify_steps = 0, verify_emitted = 0;  // since the start
  int64_t prompt_tokens = 0, generated_tokens = 0;                          // since the start
  // Since the start: sequences that lost computed rows with their blocks; of these, in the prompt
  // (before any token) and while decoding; and those that lost them a second time.
  int64_t preemptions = 0, preempted_prefills = 0, preempted_windows = 0, preempted_twice = 0;
  std::vector<int64_t> accepted_per_position;
};

struct EngineStatus {
  bool failed = false;
  std::string failure;  // names the rank
  int64_t steps = 0;
  std::vector<ReplicaStatus> replicas;
};

}  // namespace tandem
