#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/cpu/simd.h"
#include "ops/math.h"

namespace tandem::TANDEM_ISA {
namespace {

constexpr int64_t kVecs = kAttentionTile / kLanes;

// Heads and rows of one sequence that share one conversion of a key tile. 64 pairs hide it (below 2
// % of their work) and their states, 64 x 512 floats, still fit half of a 256 KiB L2 cache.
constexpr int kHeadsPerTask = 8;
constexpr int kRowsPerTask = 8;

int64_t Padded(int64_t size) {
  return CeilDiv(size, kLanes) * kLanes;
}

// The converted keys of one tile, twice: as they are for the values, and transposed for the scores.
// Absent keys are never read from the cache; their places hold zeros or an earlier tile's keys,
// which no result depends on.
struct KeyTile {
  explicit KeyTile(int64_t dim)
      : padded(Padded(dim)),
        by_key(kAttentionTile * padded),
        by_dimension(padded * kAttentionTile) {}

  int64_t padded;
  std::vector<float> by_key;        // [kAttentionTile][padded]
  std::vector<float> by_dimension;  // [padded][kAttentionTile]
};

// One head's softmax state: maximum, sum of exponentials, weighted sum of latents [padded
// kv_lora_rank].
struct HeadState {
  float maximum = 0.0f;
  float sum = 0.0f;
  float* values = nullptr;
};

// One thread's memory during one call.
struct Scratch {
  explicit Scratch(const AttentionShape& shape)
      : tile(shape.kv_lora_rank + shape.rope_dim),
        values((1 + kRowsPerTask * kHeadsPerTask) * Padded(shape.kv_lora_rank)) {
    float* next = values.data();
    for (HeadState& state : states)
      state.values = std::exchange(next, next + Padded(shape.kv_lora_rank));
    tile_state.values = next;
  }

  KeyTile tile;
  Buffer<float> values;
  HeadState states[kRowsPerTask * kHeadsPerTask];
  HeadState tile_state;
};

// One value of any trivial type at an address of any alignment.
template <typename T>
T ReadAt(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void DecodeBf16(const std::byte* in, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) out[i] = ReadAt<BFloat16>(in + 2 * i).ToFloat();
}

// Codes times their block's scale. 256 is not multiplied into the scale: 256 times the largest one
// is no float.
void DecodeFp8(const std::byte* slot, int64_t kv_lora_rank, float* out) {
  const Float8E4M3* codes = reinterpret_cast<const Float8E4M3*>(slot);
  const std::byte* scales = slot + kv_lora_rank;
  const Vec16 divisor = Vec16::Broadcast(kCodeDivisor);
  for (int64_t begin = 0; begin < kv_lora_rank; begin += kLatentScaleBlock) {
    const int64_t end = std::min<int64_t>(begin + kLatentScaleBlock, kv_lora_rank);
    const float scale = ReadAt<float>(scales + begin / kLatentScaleBlock * sizeof(float));
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      (Vec16::Load(codes + i) * divisor * Vec16::Broadcast(scale)).Store(out + i);
    }
    for (; i < end; ++i) out[i] = codes[i].ToFloat() * scale;
  }
}

void DecodeLatent(const AttentionShape& shape, const std::byte* slot, float* out) {
  const int64_t latent = shape.kv_lora_rank, rope = shape.rope_dim;
  switch (shape.format) {
    case LatentFormat::kFp32:
      std::memcpy(out, slot, (latent + rope) * sizeof(float));
      return;
    case LatentFormat::kBf16:
      return DecodeBf16(slot, latent + rope, out);
    case LatentFormat::kFp8:
      DecodeFp8(slot, latent, out);
      return DecodeBf16(slot + SlotBytes(shape.format, latent, 0), rope, out + latent);
  }
}

void LoadTile(const AttentionShape& shape, const LatentCache& cache, const int32_t* table,
              Range keys, int64_t tile_begin, KeyTile& tile) {
  for (int64_t slot = keys.begin; slot < keys.end; ++slot) {
    float* key = tile.by_key.data() + (slot - tile_begin) * tile.padded;
    DecodeLatent(shape, cache.Slot(table, slot), key);
  }
  // Sixteen dimensions at a time: the sixteen lines being written stay in the L1 cache.
  for (int64_t d = 0; d < tile.padded; d += kLanes) {
    for (int64_t t = keys.begin - tile_begin; t < keys.end - tile_begin; ++t) {
      const float* key = tile.by_key.data() + t * tile.padded + d;
      float* out = tile.by_dimension.data() + d * kAttentionTile + t;
      for (int64_t i = 0; i < kLanes; ++i) out[i * kAttentionTile] = key[i];
    }
  }
}

void TileScores(const AttentionShape& shape, const KeyTile& tile, const float* q_latent,
                const float* q_rope, float* scores) {
  Vec16 sums[kVecs];
  for (Vec16& sum : sums) sum = Vec16::Zero();
  const auto chain = [&](const float* q, int64_t size, const float* keys) {
    for (int64_t d = 0; d < size; ++d) {
      const Vec16 factor = Vec16::Broadcast(q[d]);
      const float* key = keys + d * kAttentionTile;
      for (int i = 0; i < kVecs; ++i) sums[i] = Fma(factor, Vec16::Load(key + i * kLanes), sums[i]);
    }
  };
  chain(q_latent, shape.kv_lora_rank, tile.by_dimension.data());
  chain(q_rope, shape.rope_dim,
        tile.by_dimension.data() + int64_t{shape.kv_lora_rank} * kAttentionTile);
  const Vec16 scale = Vec16::Broadcast(shape.scale);
  for (int i = 0; i < kVecs; ++i) (sums[i] * scale).Store(scores + i * kLanes);
}

// out[0 .. 16 N) = chain over the keys [first, last) of weight * key, keys ascending.
template <int N>
void WeightedSum(const float* weights, const float* keys, int64_t stride, int first, int last,
                 float* out) {
  Vec16 sums[N];
  for (Vec16& sum : sums) sum = Vec16::Zero();
  for (int t = first; t < last; ++t) {
    const Vec16 weight = Vec16::Broadcast(weights[t]);
    const float* key = keys + t * stride;
    for (int i = 0; i < N; ++i) sums[i] = Fma(weight, Vec16::Load(key + i * kLanes), sums[i]);
  }
  for (int i = 0; i < N; ++i) sums[i].Store(out + i * kLanes);
}

float Maximum(const float* scores) {
  float lanes[kLanes];
  std::copy(scores, scores + kLanes, lanes);
  for (int64_t t = kLanes; t < kAttentionTile; t += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = std::max(lanes[i], scores[t + i]);
  }
  return *std::max_element(lanes, lanes + kLanes);
}

// state = the tile alone, for keys [first, last) counted inside the tile.
void TileState(const AttentionShape& shape, const KeyTile& tile, float* scores, int first, int last,
               HeadState& state) {
  // Absent keys become weights of +0, so that these loops have a fixed length.
  std::fill(scores, scores + first, -std::numeric_limits<float>::infinity());
  std::fill(scores + last, scores + kAttentionTile, -std::numeric_limits<float>::infinity());
  state.maximum = Maximum(scores);
  for (int t = 0; t < kAttentionTile; ++t) scores[t] = Exp(scores[t] - state.maximum);
  state.sum = 0.0f;
  for (int t = first; t < last; ++t) state.sum += scores[t];
  // Four vectors at a time are eight chains on AVX2, as many as keep its two FMA units busy.
  int64_t c = 0;
  const int64_t columns = Padded(shape.kv_lora_rank);
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
    WeightedSum<4>(scores, tile.by_key.data() + c, tile.padded, first, last, state.values + c);
  }
  for (; c < columns; c += kLanes) {
    WeightedSum<1>(scores, tile.by_key.data() + c, tile.padded, first, last, state.values + c);
  }
}

void Merge(HeadState& left, const HeadState& right, int64_t size) {
  const float maximum = std::max(left.maximum, right.maximum);
  const float a = Exp(left.maximum - maximum);
  const float b = Exp(right.maximum - maximum);
  left.maximum = maximum;
  left.sum = std::fma(right.sum, b, left.sum * a);
  const Vec16 va = Vec16::Broadcast(a), vb = Vec16::Broadcast(b);
  for (int64_t i = 0; i < size; i += kLanes) {
    Fma(Vec16::Load(right.values + i), vb, Vec16::Load(left.values + i) * va)
        .Store(left.values + i);
  }
}

// Rows that can share converted tiles: consecutive, of one sequence.
struct Queries {
  const AttentionRow* rows;
  int count;
  InputRows latent, rope;
  int64_t rope_head;
  OutputRows out;
};

// Adds the tile at `begin`, loaded for all keys of the rows, to the states of one row's heads.
void AttendTile(const AttentionShape& shape, const Queries& q, int r, Range heads, int64_t begin,
                int32_t first_key, Scratch& scratch) {
  const int first = static_cast<int>(std::max<int64_t>(first_key - begin, 0));
  const int last =
      static_cast<int>(std::min<int64_t>(q.rows[r].position + 1 - begin, kAttentionTile));
  const bool first_tile = begin <= first_key;
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    alignas(64) float scores[kAttentionTile];
    TileScores(shape, scratch.tile, q.latent.row(r) + h * shape.kv_lora_rank,
               q.rope.row(r) + h * q.rope_head, scores);
    HeadState& state = scratch.states[r * kHeadsPerTask + h - heads.begin];
    TileState(shape, scratch.tile, scores, first, last, first_tile ? state : scratch.tile_state);
    if (!first_tile) Merge(state, scratch.tile_state, Padded(shape.kv_lora_rank));
  }
}

void Attend(const AttentionShape& shape, const LatentCache& cache, int32_t first_key,
            const Queries& q, Range heads, Scratch& scratch) {
  int64_t end = 0;
  for (int r = 0; r < q.count; ++r) end = std::max<int64_t>(end, q.rows[r].position + 1);
  for (int64_t begin = first_key / kAttentionTile * kAttentionTile; begin < end;
       begin += kAttentionTile) {
    const Range keys{std::max<int64_t>(begin, first_key), std::min(begin + kAttentionTile, end)};
    LoadTile(shape, cache, q.rows[0].table, keys, begin, scratch.tile);
    for (int r = 0; r < q.count; ++r) {
      if (begin <= q.rows[r].position) AttendTile(shape, q, r, heads, begin, first_key, scratch);
    }
  }
  for (int r = 0; r < q.count; ++r) {
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      const HeadState& state = scratch.states[r * kHeadsPerTask + h - heads.begin];
      float* y = q.out.row(r) + h * shape.kv_lora_rank;
      for (int64_t i = 0; i < shape.kv_lora_rank; ++i) y[i] = state.values[i] / state.sum;
    }
  }
}

bool HasKeys(const AttentionRow& row, int32_t first_key) {
  return row.active && row.position >= first_key;
}

// How many of the first `most` rows can share tiles with the first one, which has keys.
int SharingRows(const AttentionRow* rows, int64_t most, int32_t first_key) {
  int count = 1;
  while (count < std::min<int64_t>(most, kRowsPerTask) && HasKeys(rows[count], first_key) &&
         rows[count].table == rows[0].table) {
    ++count;
  }
  return count;
}

}  // namespace

void LatentAttention(const AttentionShape& shape, const LatentCache& cache, int32_t first_key,
                     const AttentionRow* rows, int64_t num_rows, InputRows q_latent,
                     InputRows q_rope, int64_t q_rope_head, OutputRows out, const Worker& worker) {
  if (shape.num_heads == 0) return;
  Scratch scratch(shape);
  const int64_t chunks = CeilDiv(shape.num_heads, kHeadsPerTask);
  // One unit is one row of one chunk of heads, rows innermost, so that a worker's units are runs of
  // rows.
  const Range units = Share(num_rows * chunks, worker.thread, worker.num_threads);
  for (int64_t unit = units.begin; unit < units.end;) {
    const int64_t r = unit % num_rows;
    const Range heads = Share(shape.num_heads, unit / num_rows, chunks);
    if (!HasKeys(rows[r], first_key)) {
      std::fill(out.row(r) + heads.begin * shape.kv_lora_rank,
                out.row(r) + heads.end * shape.kv_lora_rank, 0.0f);
      ++unit;
      continue;
    }
    const int count = SharingRows(rows + r, std::min(num_rows - r, units.end - unit), first_key);
    const Queries queries{rows + r,
                          count,
                          {q_latent.row(r), q_latent.stride},
                          {q_rope.row(r), q_rope.stride},
                          q_rope_head,
                          {out.row(r), out.stride}};
    Attend(shape, cache, first_key, queries, heads, scratch);
    unit += count;
  }
}

}  // namespace tandem::TANDEM_ISA
