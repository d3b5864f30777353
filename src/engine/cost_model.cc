#include "engine/cost_model.h"

#include <algorithm>
#include <chrono>

#include "ops/kernels.h"

namespace tandem {
namespace {

// The part of a second that the matrix products of prompt rows may take by the measurement; the
// rest is for attention, decode rows, draft passes and a machine that is busier later than during
// the measurement.
constexpr double kMatrixSeconds = 0.4;

// Multiply-adds per second of one thread, the best of three tries: 24 rows through a BF16 matrix of
// 512 x 1024 (1 MiB, like a slice of a layer that streams through the cache).
double MeasureMultiplyAdds(const Kernels& kernels) {
  constexpr int64_t kColumns = 512, kDepth = 1024, kRows = 24;
  const PackedMatrix matrix(kColumns, kDepth, WeightType::kBf16);
  const Buffer<float> x(kRows * kDepth), y(kRows * kColumns);
  double best = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    kernels.matmul(matrix, {x.data(), kDepth}, kRows, {y.data(), kColumns}, Worker{});
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, kColumns * kDepth * kRows / std::max(time.count(), 1e-9));
  }
  return best;
}

}  // namespace

int64_t MultiplyAddsPerRow(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads;
  const int64_t query_input = config.q_lora_rank > 0 ? config.q_lora_rank : hidden;
  const int64_t attention =
      hidden * (config.q_lora_rank + config.kv_lora_rank + config.qk_rope_head_dim) +
      query_input * heads * config.qk_head_dim() +
      heads * config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim) +
      heads * config.v_head_dim * hidden;
  int64_t total = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t width =
        config.IsMoeLayer(layer)
            ? config.moe_intermediate_size * (config.num_experts_per_tok + config.n_shared_experts)
            : config.intermediate_size;
    total += attention + 3 * hidden * width;
  }
  return total;
}

int DefaultMaxStepRows(const ModelConfig& config, const EngineOptions& options,
                       const Kernels& kernels, int busy_threads) {
  const double rows = kMatrixSeconds * MeasureMultiplyAdds(kernels) * busy_threads /
                      static_cast<double>(MultiplyAddsPerRow(config));
  const double most = static_cast<double>(options.dp_size) * options.chunked_prefill_size;
  return static_cast<int>(std::clamp(rows, static_cast<double>(options.dp_size), most));
}

}  // namespace tandem
