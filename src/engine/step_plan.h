// What a step will compute: one replica's plan, the small record of it that ranks exchange, and the
// group plan that every rank derives from all records. Pure functions of values; no model, no
// threads.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/api.h"
#include "parallel/layout.h"

namespace tandem {

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxDraftTokens = 8;

enum class RowKind : int32_t { kWindow, kChunk };

// One sequence's part of a step. Travels between ranks as bytes.
struct PlanSequence {
  uint64_t request_id = 0;
  SamplingParams sampling;
  RowKind kind = RowKind::kWindow;
  int32_t start = 0;        // position of the first row
  int32_t num_rows = 0;     // a window: 1 + drafts
  int32_t prefill_end = 0;  // a chunk that ends there is final
  int32_t resumed = 0;      // of a chunk: 1 if the token after the final one is known already
  int32_t limit = 0;        // min(context, prompt + max_tokens)
  int32_t logprobs = -1;
  int32_t prompt_logprobs = -1;
  int32_t token_begin = 0;  // into tokens: the rows', and for a chunk the rest of what was proposed
                            // + 1 more if not final
  int32_t block_begin = 0;
  int32_t num_blocks = 0;
  int32_t min_end = 0;                    // first position where a stop token may stand
  int32_t stop_begin = 0, num_stops = 0;  // into tokens: which those are, if it matters

  bool is_chunk() const { return kind == RowKind::kChunk; }
  bool is_final_chunk() const { return is_chunk() && start + num_rows == prefill_end; }
  // Whether the last row's token is sampled and becomes a token of the request.
  bool emits() const { return !is_chunk() || (is_final_chunk() && !resumed); }
  // Tokens of the request that chunks of this sequence know.
  int32_t known_end() const { return prefill_end + resumed; }
  // Rows that get logits: windows all, final chunks the last, prompt-logprob chunks all.
  int32_t head_rows() const {
    if (!is_chunk() || prompt_logprobs >= 0) return num_rows;
    return is_final_chunk() ? 1 : 0;
  }
  // How many drafts the next window can hold at most: it starts at the token after the final chunk,
  // or at least one after this window's first.
  int32_t useful_drafts(int32_t k) const {
    if (is_chunk() && !is_final_chunk()) return 0;
    const int32_t next_start = is_chunk() ? prefill_end : start + 1;
    return std::max(0, std::min(k, limit - next_start - 2));
  }
};

// A replica's proposal: windows first, then chunks. Prompt rows may still be cut (Truncate).
struct StepPlan {
  bool has_work = false;  // any request outstanding, rows or not
  bool stop = false;
  uint32_t doorbell = 0;  // the engine's counter, read before the scheduler looked for requests
  std::vector<PlanSequence> sequences;
  std::vector<int32_t> tokens;
  std::vector<int32_t> blocks;

  int32_t prompt_rows() const;
  // Cuts chunks, in order, so that at most `max_prompt_rows` remain; empty ones go.
  void Truncate(int32_t max_prompt_rows);

  std::vector<std::byte> Serialize() const;
  static StepPlan Deserialize(std::span<const std::byte> bytes);
};

// Row counts of a plan after truncation. `rank_head_rows` is of one rank of the replica.
struct StepShape {
  int32_t rows = 0;
  int32_t rank_head_rows = 0;
  int32_t draft_rows = 0;
  int32_t k_draft = 0;
  bool operator==(const StepShape&) const = default;
};

// Of rank attn_rank of attn_tp_size; k = the engine's upper limit.
StepShape ShapeOf(const StepPlan& plan, int32_t max_prompt_rows, int k, int attn_rank,
                  int attn_tp_size);

// What one rank tells all others, once per step.
struct StepRecord {
  uint64_t commit_hash = 0;  // of everything this rank has seen its replica commit
  uint32_t doorbell = 0;
  int32_t has_work = 0;
  int32_t stop = 0;
  int32_t windows = 0;
  int32_t k_verify = 0;
  int32_t prompt_rows = 0;
  StepShape free_shape;  // if nobody decodes
  // [n - 1]: if n replicas with prompt rows share max_step_rows.
  std::array<StepShape, kMaxRanks> shared_shape;
};

StepRecord MakeRecord(const StepPlan& plan, uint64_t commit_hash, int k, int max_step_rows,
                      const Layout& layout, int rank);

// Prompt rows a replica may bring when nobody decodes.
inline constexpr int32_t kNoPromptLimit = std::numeric_limits<int32_t>::max();

// The same on every rank.
struct GroupPlan {
  bool any_work = false;
  bool stop = false;
  uint32_t doorbell = 0;  // the smallest of all: whoever sleeps, sleeps on this value
  int32_t max_prompt_rows = kNoPromptLimit;  // of each replica
  int k_verify = 0;
  int k_draft = 0;
  bool mixed = false;       // some replica decodes
  int32_t prompt_rows = 0;  // at most, over all replicas
  // [rank]..[rank + 1]: rows of that rank, as prefix sums over the world.
  std::array<int32_t, kMaxRanks + 1> row_begin{}, head_begin{}, draft_begin{};
};

// Errors: Internal, naming the ranks, if ranks of one replica disagree about what was committed.
Result<GroupPlan> Agree(std::span<const StepRecord> records, const Layout& layout,
                        int max_step_rows);

}  // namespace tandem
