#include "engine/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem {
namespace {

std::string Size(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return std::abs(mib) < 10000 ? fmt::format("{:.1f} MiB", mib)
                               : fmt::format("{:.1f} GiB", mib / 1024);
}

const char* FormatName(LatentFormat format) {
  switch (format) {
    case LatentFormat::kBf16:
      return "bf16";
    case LatentFormat::kFp8:
      return "fp8";
    case LatentFormat::kFp32:
      return "fp32";
  }
  return "";
}

int64_t NumBlocks(const MemoryBudget& budget, const EngineOptions& options) {
  const int64_t most = options.max_num_seqs * CeilDiv(options.context_length, options.block_size);
  // Beyond any machine, and far from where the sums would overflow.
  constexpr int64_t kMostBytes = int64_t{1} << 60;
  int64_t tokens =
      std::min(options.max_total_tokens, kMostBytes / budget.num_pools / budget.token_bytes);
  if (tokens == 0) {
    const int64_t memory =
        static_cast<int64_t>(static_cast<double>(budget.machine_bytes) * budget.memory_fraction);
    const int64_t left =
        memory - budget.process_bytes - budget.weights.total_bytes() - budget.workspace.total();
    tokens = std::max<int64_t>(left, 0) / budget.num_pools / budget.token_bytes;
  }
  return std::min(
      {tokens / options.block_size, most, int64_t{std::numeric_limits<int32_t>::max()}});
}

}  // namespace

int64_t MemoryBudget::rank_bytes(const Layout& layout, int rank) const {
  const int64_t sharers = layout.tp_size() / num_pools;
  return weights.rank_bytes[rank] + workspace.rank[rank] + kv_tokens() * token_bytes / sharers;
}

std::string MemoryBudget::Text(const Layout& layout) const {
  std::string text = "weights      ";
  const char* separator = "";
  for (int group = 0; group < kNumWeightGroups; ++group) {
    if (weights.group_bytes[group] == 0) continue;
    text += fmt::format("{}{} {}", separator, kWeightGroupNames[group],
                        Size(weights.group_bytes[group]));
    separator = ", ";
  }
  text += fmt::format(
      "\nKV cache     {}, {} tokens in each of {} pools, blocks of {}, {} bytes per token ({} of "
      "them "
      "the draft layer's)\n",
      FormatName(kv_format), kv_tokens(), num_pools, block_size, token_bytes, draft_token_bytes);
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    text += fmt::format(
        "rank {:<8}{}: weights {}, workspace {}, its part of the KV pool {}\n", rank,
        Size(rank_bytes(layout, rank)), Size(weights.rank_bytes[rank]), Size(workspace.rank[rank]),
        Size(rank_bytes(layout, rank) - weights.rank_bytes[rank] - workspace.rank[rank]));
  }
  text += fmt::format(
      "memory       all ranks on one node: weights {} ({} of them shared) + KV {} + workspace {} + "
      "process {} = {} of {}; left {}",
      Size(weights.total_bytes()), Size(weights.shared_bytes), Size(kv_bytes()),
      Size(workspace.total()), Size(process_bytes), Size(total_bytes()), Size(machine_bytes),
      Size(machine_bytes - total_bytes()));
  return text;
}

std::string MemoryBudget::WhyNot() const {
  const std::string sum = fmt::format(
      "weights {} + KV cache {} ({} pools x {} tokens x {} bytes) + workspace {} + process {} = "
      "{}, "
      "the machine has {}",
      Size(weights.total_bytes()), Size(kv_bytes()), num_pools, kv_tokens(), token_bytes,
      Size(workspace.total()), Size(process_bytes), Size(total_bytes()), Size(machine_bytes));
  if (num_blocks == 0) {
    return fmt::format(
        "the KV pool does not hold one block of {} tokens: {}, of which {:.0f} % may be used; "
        "raise "
        "--max-total-tokens or --mem-fraction-static, or lower --max-num-seqs or "
        "--chunked-prefill-size",
        block_size, sum, memory_fraction * 100);
  }
  return sum +
         "; lower --max-total-tokens, --max-num-seqs, --chunked-prefill-size or "
         "--context-length";
}

MemoryBudget PlanMemory(const ModelConfig& config, const Layout& layout,
                        const EngineOptions& options, const RowLimits& limits,
                        const WeightPlan& weights, int64_t machine_bytes, int64_t process_bytes) {
  const bool with_mtp = options.num_draft_tokens > 0;
  MemoryBudget budget;
  budget.weights = weights;
  budget.workspace = CountWorkspace(config, layout, limits, options.kv_format, with_mtp,
                                    options.copying_communicator);
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    // Each thread samples over a row of its own.
    budget.workspace.rank[rank] += Share(options.num_threads, rank, layout.tp_size()).size() *
                                   config.vocab_size * static_cast<int64_t>(sizeof(float));
  }
  budget.num_pools = options.copying_communicator ? layout.tp_size() : layout.dp_size();
  const int64_t slot = SlotBytes(options.kv_format, config.kv_lora_rank, config.qk_rope_head_dim);
  budget.kv_format = options.kv_format;
  budget.slot_bytes = slot;
  budget.draft_token_bytes = with_mtp ? slot : 0;
  budget.token_bytes = slot * config.num_hidden_layers + budget.draft_token_bytes;
  budget.block_size = options.block_size;
  budget.machine_bytes = machine_bytes;
  budget.process_bytes = process_bytes;
  budget.memory_fraction = options.memory_fraction;
  budget.num_blocks = NumBlocks(budget, options);
  return budget;
}

}  // namespace tandem
