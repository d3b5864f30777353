#include "model/workspace.h"

#include <algorithm>
#include <numeric>

namespace tandem {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Columns of a gated MLP of `width` on a rank: whole units of its segments.
int64_t OwnColumns(int64_t unit, int64_t width, Range segments) {
  const Range units = UnitsOfSegments(CeilDiv(width, unit), segments);
  return std::min(units.end * unit, width) - std::min(units.begin * unit, width);
}

// The most there can be: units are scale blocks where the tensor is FP8, which only it says.
int64_t OwnColumns(const ModelConfig& config, int64_t width, Range segments) {
  int64_t most = OwnColumns(kMlpUnit, width, segments);
  if (config.quantization.present) {
    most = std::max(most, OwnColumns(config.quantization.block_columns, width, segments));
  }
  return most;
}

int64_t WidestMlp(const ModelConfig& config, Range segments) {
  int64_t widest =
      OwnColumns(config, config.n_shared_experts * config.moe_intermediate_size, segments);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.IsMoeLayer(layer)) continue;
    widest = std::max(widest, OwnColumns(config, config.intermediate_size, segments));
  }
  return widest;
}

// Bytes of the buffers that hold every rank's rows.
int64_t GatheredBytes(const ModelConfig& config, const Layout& layout, const RowLimits& limits,
                      LatentFormat format, bool whole_world) {
  const int64_t replicas = layout.dp_size();
  if (!whole_world) {
    const int64_t slot = SlotBytes(format, config.kv_lora_rank, config.qk_rope_head_dim);
    const int64_t query = config.q_lora_rank > 0 ? config.q_lora_rank : config.hidden_size;
    return limits.rows * (query + CeilDiv(slot, kFloat)) * kFloat;
  }
  const int64_t row = config.hidden_size + 2 * config.num_experts_per_tok +
                      static_cast<int64_t>(sizeof(RowIdentity)) / kFloat;
  return replicas * (limits.rows * row + limits.head_rows * config.hidden_size) * kFloat;
}

// Floats of one rank's own buffers, and its pieces for others.
int64_t RankFloats(const ModelConfig& config, const Layout& layout, const RowLimits& limits,
                   bool with_mtp, int rank) {
  const int64_t hidden = config.hidden_size, replica = limits.rows;
  const int64_t all = replica * layout.dp_size();
  const int64_t own = CeilDiv(replica, layout.attn_tp_size());
  const int64_t heads = UnitsOfSegments(config.num_attention_heads,
                                        SegmentsOf(layout.attn_rank(rank), layout.attn_tp_size()))
                            .size();
  const Range segments = SegmentsOf(rank, layout.tp_size());
  const int64_t experts = UnitsOfSegments(config.n_routed_experts, segments).size();
  const int64_t pairs = all * std::min(config.num_experts_per_tok, experts);
  const int64_t vocab = Share(config.vocab_size, rank, layout.tp_size()).size();
  int64_t floats =
      own * (3 * hidden + config.kv_lora_rank + config.qk_rope_head_dim + config.n_routed_experts);
  if (with_mtp) floats += limits.draft_rows * hidden + own * 2 * hidden;
  floats += replica * heads * (config.qk_head_dim() + 2 * config.kv_lora_rank + config.v_head_dim);
  floats += all * WidestMlp(config, segments);
  // Each pair's activations, row and weight; where each expert's pairs begin.
  floats += pairs * (config.moe_intermediate_size + 2) + experts + 1;
  floats += replica * hidden + all * 2 * hidden;
  return floats + limits.head_rows * layout.dp_size() * vocab;
}

}  // namespace

int64_t WorkspaceBytes::total() const {
  return std::accumulate(rank.begin(), rank.end(), shared);
}

WorkspaceBytes CountWorkspace(const ModelConfig& config, const Layout& layout,
                              const RowLimits& limits, LatentFormat format, bool with_mtp,
                              bool copying) {
  const int64_t group = GatheredBytes(config, layout, limits, format, false);
  const int64_t world = GatheredBytes(config, layout, limits, format, true);
  WorkspaceBytes bytes;
  bytes.shared = copying ? 0 : group * layout.dp_size() + world;
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    int64_t own = RankFloats(config, layout, limits, with_mtp, rank) * kFloat;
    if (copying) {
      // Outboxes exist twice, and hold at most the pieces of all rows; what is received is as large
      // once more.
      const int64_t pieces = limits.rows * layout.dp_size() * 2 * config.hidden_size * kFloat;
      own += group + world + 3 * pieces;
    }
    bytes.rank.push_back(own);
  }
  return bytes;
}

}  // namespace tandem
