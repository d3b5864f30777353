#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/simd.h"
#include "ops/math.h"

namespace tandem {
namespace {

constexpr int64_t kLanes = 16;

// Heads that share one conversion of a key tile: enough to hide it, few enough to divide one row among threads.
constexpr int kHeadsPerTask = 8;

// The converted keys of one tile, twice: as they are for the values, and transposed for the scores. Absent keys are zeros
// and are never read from the cache.
struct KeyTile {
  std::vector<float> by_key;        // [kAttentionTile][padded dim]
  std::vector<float> by_dimension;  // [dim][kAttentionTile]
};

int64_t Padded(int64_t size) { return CeilDiv(size, kLanes) * kLanes; }

void DecodeLatent(LatentFormat format, const std::byte* slot, int64_t size, float* out) {
  if (format == LatentFormat::kFp32) {
    std::memcpy(out, slot, size * sizeof(float));
    return;
  }
  const BFloat16* values = reinterpret_cast<const BFloat16*>(slot);
  for (int64_t i = 0; i < size; ++i) out[i] = values[i].ToFloat();
}

void LoadTile(const AttentionShape& shape, const LatentCache& cache, const int32_t* table,
              Range keys, int64_t tile_begin, KeyTile& tile) {
  const int64_t dim = shape.kv_lora_rank + shape.rope_dim;
  const int64_t padded = Padded(dim);
  tile.by_key.assign(kAttentionTile * padded, 0.0f);
  tile.by_dimension.assign(dim * kAttentionTile, 0.0f);
  for (int64_t slot = keys.begin; slot < keys.end; ++slot) {
    const int64_t t = slot - tile_begin;
    float* key = tile.by_key.data() + t * padded;
    DecodeLatent(shape.format, cache.Slot(table, slot), dim, key);
    for (int64_t d = 0; d < dim; ++d) tile.by_dimension[d * kAttentionTile + t] = key[d];
  }
}

// One head's softmax state: maximum, sum of exponentials, weighted sum of latents.
struct HeadState {
  float maximum = 0.0f;
  float sum = 0.0f;
  std::vector<float> values;  // [padded kv_lora_rank]
};

void TileScores(const AttentionShape& shape, const KeyTile& tile, const float* q_latent,
                const float* q_rope, float* scores) {
  Vec16 sums[kAttentionTile / kLanes];
  for (Vec16& sum : sums) sum = Vec16::Zero();
  const auto chain = [&](const float* q, int64_t size, const float* keys) {
    for (int64_t d = 0; d < size; ++d) {
      const Vec16 factor = Vec16::Broadcast(q[d]);
      const float* key = keys + d * kAttentionTile;
      for (int i = 0; i < kAttentionTile / kLanes; ++i) {
        sums[i] = Fma(factor, Vec16::Load(key + i * kLanes), sums[i]);
      }
    }
  };
  chain(q_latent, shape.kv_lora_rank, tile.by_dimension.data());
  chain(q_rope, shape.rope_dim,
        tile.by_dimension.data() + int64_t{shape.kv_lora_rank} * kAttentionTile);
  const Vec16 scale = Vec16::Broadcast(shape.scale);
  for (int i = 0; i < kAttentionTile / kLanes; ++i) (sums[i] * scale).Store(scores + i * kLanes);
}

// state = the tile alone, for keys [first, last) counted inside the tile.
void TileState(const AttentionShape& shape, const KeyTile& tile, float* scores, int first, int last,
               HeadState& state) {
  state.maximum = *std::max_element(scores + first, scores + last);
  state.sum = 0.0f;
  for (int t = first; t < last; ++t) {
    scores[t] = Exp(scores[t] - state.maximum);
    state.sum += scores[t];
  }
  const int64_t padded = Padded(shape.kv_lora_rank + shape.rope_dim);
  for (int64_t c = 0; c < Padded(shape.kv_lora_rank); c += kLanes) {
    Vec16 value = Vec16::Zero();
    const float* key = tile.by_key.data() + c;
    for (int t = first; t < last; ++t) {
      value = Fma(Vec16::Broadcast(scores[t]), Vec16::Load(key + t * padded), value);
    }
    value.Store(state.values.data() + c);
  }
}

void Merge(HeadState& left, const HeadState& right) {
  const float maximum = std::max(left.maximum, right.maximum);
  const float a = Exp(left.maximum - maximum);
  const float b = Exp(right.maximum - maximum);
  left.maximum = maximum;
  left.sum = std::fma(right.sum, b, left.sum * a);
  for (size_t i = 0; i < left.values.size(); ++i) {
    left.values[i] = std::fma(right.values[i], b, left.values[i] * a);
  }
}

struct Scratch {
  KeyTile tile;
  HeadState tile_state;
  HeadState states[kHeadsPerTask];
};

// One row, heads [heads.begin, heads.end).
void AttendHeads(const AttentionShape& shape, const LatentCache& cache, int32_t first_key,
                 const AttentionRow& row, Range heads, const float* q_latent, const float* q_rope,
                 int64_t q_rope_head, float* out, Scratch& scratch) {
  const int64_t end = int64_t{row.position} + 1;
  bool first_tile = true;
  for (int64_t begin = first_key / kAttentionTile * kAttentionTile; begin < end;
       begin += kAttentionTile) {
    const Range keys{std::max<int64_t>(begin, first_key), std::min(begin + kAttentionTile, end)};
    LoadTile(shape, cache, row.table, keys, begin, scratch.tile);
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      alignas(64) float scores[kAttentionTile];
      TileScores(shape, scratch.tile, q_latent + h * shape.kv_lora_rank, q_rope + h * q_rope_head,
                 scores);
      HeadState& state = scratch.states[h - heads.begin];
      HeadState& target = first_tile ? state : scratch.tile_state;
      TileState(shape, scratch.tile, scores, static_cast<int>(keys.begin - begin),
                static_cast<int>(keys.end - begin), target);
      if (!first_tile) Merge(state, scratch.tile_state);
    }
    first_tile = false;
  }
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    const HeadState& state = scratch.states[h - heads.begin];
    float* y = out + h * shape.kv_lora_rank;
    for (int64_t i = 0; i < shape.kv_lora_rank; ++i) y[i] = state.values[i] / state.sum;
  }
}

}  // namespace

RopeTable::RopeTable(std::span<const float> inv_freq, float multiplier, int64_t positions)
    : pairs_(static_cast<int64_t>(inv_freq.size())),
      cos_(inv_freq.size() * positions),
      sin_(inv_freq.size() * positions) {
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < pairs_; ++i) {
      const double angle = static_cast<float>(p) * inv_freq[i];
      cos_[p * pairs_ + i] = static_cast<float>(std::cos(angle)) * multiplier;
      sin_[p * pairs_ + i] = static_cast<float>(std::sin(angle)) * multiplier;
    }
  }
}

void RopeTable::Rotate(int64_t position, float* x) const {
  const float* cos = cos_.data() + position * pairs_;
  const float* sin = sin_.data() + position * pairs_;
  for (int64_t i = 0; i < pairs_; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = std::fma(a, cos[i], -(b * sin[i]));
    x[2 * i + 1] = std::fma(a, sin[i], b * cos[i]);
  }
}

void EncodeLatent(LatentFormat format, const float* values, int64_t size, std::byte* out) {
  if (format == LatentFormat::kFp32) {
    std::memcpy(out, values, size * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    const BFloat16 rounded = BFloat16::FromFloat(values[i]);
    std::memcpy(out + i * sizeof rounded, &rounded, sizeof rounded);
  }
}

void LatentAttention(const AttentionShape& shape, const LatentCache& cache, int32_t first_key,
                     const AttentionRow* rows, int64_t num_rows, InputRows q_latent,
                     InputRows q_rope, int64_t q_rope_head, OutputRows out, const Worker& worker) {
  if (shape.num_heads == 0) return;
  Scratch scratch;
  scratch.tile_state.values.resize(Padded(shape.kv_lora_rank));
  for (HeadState& state : scratch.states) state.values.resize(Padded(shape.kv_lora_rank));
  const int64_t chunks = CeilDiv(shape.num_heads, kHeadsPerTask);
  const Range tasks = Share(num_rows * chunks, worker.thread, worker.num_threads);
  for (int64_t task = tasks.begin; task < tasks.end; ++task) {
    const int64_t r = task / chunks;
    const Range heads = Share(shape.num_heads, task % chunks, chunks);
    if (!rows[r].active || rows[r].position < first_key) {
      std::fill(out.row(r) + heads.begin * shape.kv_lora_rank,
                out.row(r) + heads.end * shape.kv_lora_rank, 0.0f);
      continue;
    }
    AttendHeads(shape, cache, first_key, rows[r], heads, q_latent.row(r), q_rope.row(r),
                q_rope_head, out.row(r), scratch);
  }
}

}  // namespace tandem
