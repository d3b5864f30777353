#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/math.h"
#include "ops/test_kernels.h"
#include "ops/test_rows.h"

namespace tandem {
namespace {

class LatentAttention : public KernelTest {};
TANDEM_FOR_ALL_KERNELS(LatentAttention);

constexpr LatentFormat kFormats[] = {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kFp32};

struct Case {
  LatentFormat format = LatentFormat::kBf16;
  int heads = 3;
  int latent = 36;
  int rope = 6;
  int32_t block_size = 16;
  int32_t first_key = 0;
  int64_t dim() const { return latent + rope; }
  AttentionShape shape() const { return {heads, latent, rope, 0.3f, format}; }
};

// The keys of a sequence by slot, rounded to the cache's format.
using Keys = std::vector<std::vector<float>>;

// The power of two that the format asks for, by searching.
float ReferenceScale(const float* values, int64_t size) {
  float largest = 0;
  for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(values[i]));
  float scale = 0x1p-13f;  // the smallest power of two of at least 1e-4
  while (448.0 * scale < largest) scale *= 2;
  return scale;
}

// What the cache keeps of a key.
void Round(const Case& c, std::vector<float>& key) {
  if (c.format == LatentFormat::kFp32) return;
  const int64_t fp8 = c.format == LatentFormat::kFp8 ? c.latent : 0;
  for (int64_t begin = 0; begin < fp8; begin += 128) {
    const int64_t size = std::min<int64_t>(128, fp8 - begin);
    const float scale = ReferenceScale(key.data() + begin, size);
    for (int64_t i = begin; i < begin + size; ++i) {
      key[i] = Float8E4M3::FromFloat(key[i] / scale).ToFloat() * scale;
    }
  }
  for (size_t i = fp8; i < key.size(); ++i) key[i] = BFloat16::FromFloat(key[i]).ToFloat();
}

// One sequence: its keys, in a pool of shuffled blocks where everything else is NaN.
class Sequence {
 public:
  Sequence(const Case& c, int32_t num_keys, std::mt19937& rng)
      : slot_bytes_(SlotBytes(c.format, c.latent, c.rope) +
                    (c.format == LatentFormat::kFp8 ? 3 : 4)) {
    const int64_t blocks = CeilDiv(num_keys, c.block_size) + 2;
    pool_ = Buffer<std::byte>(blocks * c.block_size * slot_bytes_);
    std::fill_n(pool_.data(), pool_.size(), std::byte{0xff});  // NaN in every format
    for (int32_t b = 0; b + 2 < blocks; ++b) table.push_back(b + 1);
    std::shuffle(table.begin(), table.end(), rng);
    cache = {pool_.data(), slot_bytes_, c.block_size};
    for (int32_t s = c.first_key; s < num_keys; ++s) {
      std::vector<float> key(c.dim());
      for (float& x : key) x = RandomFloat(rng);
      EncodeLatent(c.format, key.data(), c.latent, c.rope, cache.Slot(table.data(), s));
      Round(c, key);
      keys.resize(s);
      keys.push_back(key);
    }
  }

  std::vector<int32_t> table;
  Keys keys;
  LatentCache cache;

 private:
  int64_t slot_bytes_;
  Buffer<std::byte> pool_;
};

struct Tile {
  float maximum, sum;
  std::vector<float> values;
};

float Score(const Case& c, const std::vector<float>& key, const float* q_latent,
            const float* q_rope) {
  float score = 0.0f;
  for (int d = 0; d < c.latent; ++d) score = std::fma(q_latent[d], key[d], score);
  for (int d = 0; d < c.rope; ++d) score = std::fma(q_rope[d], key[c.latent + d], score);
  return score * c.shape().scale;
}

Tile TileAlone(const Case& c, const Keys& keys, Range slots, const float* q_latent,
               const float* q_rope) {
  std::vector<float> scores;
  for (int64_t s = slots.begin; s < slots.end; ++s) {
    scores.push_back(Score(c, keys[s], q_latent, q_rope));
  }
  Tile tile{*std::max_element(scores.begin(), scores.end()), 0.0f, std::vector<float>(c.latent)};
  for (size_t i = 0; i < scores.size(); ++i) {
    const float weight = Exp(scores[i] - tile.maximum);
    tile.sum += weight;
    const std::vector<float>& key = keys[slots.begin + i];
    for (int d = 0; d < c.latent; ++d) tile.values[d] = std::fma(weight, key[d], tile.values[d]);
  }
  return tile;
}

// The documented order: tiles of 64 keys at absolute positions, each alone, one left fold.
std::vector<float> Reference(const Case& c, const Keys& keys, int32_t position,
                             const float* q_latent, const float* q_rope) {
  Tile all;
  for (int64_t begin = c.first_key / 64 * 64; begin <= position; begin += 64) {
    const Range slots{std::max<int64_t>(begin, c.first_key),
                      std::min<int64_t>(begin + 64, position + 1)};
    Tile tile = TileAlone(c, keys, slots, q_latent, q_rope);
    if (slots.begin == c.first_key) {
      all = std::move(tile);
      continue;
    }
    const float maximum = std::max(all.maximum, tile.maximum);
    const float a = Exp(all.maximum - maximum), b = Exp(tile.maximum - maximum);
    all.maximum = maximum;
    all.sum = std::fma(tile.sum, b, all.sum * a);
    for (int d = 0; d < c.latent; ++d) {
      all.values[d] = std::fma(tile.values[d], b, all.values[d] * a);
    }
  }
  for (float& x : all.values) x /= all.sum;
  return all.values;
}

std::vector<double> Softmax(const Case& c, const Keys& keys, int32_t position,
                            const float* q_latent, const float* q_rope) {
  std::vector<double> values(c.latent), scores;
  double sum = 0;
  for (int32_t s = c.first_key; s <= position; ++s) {
    double score = 0;
    for (int d = 0; d < c.latent; ++d) score += double{q_latent[d]} * keys[s][d];
    for (int d = 0; d < c.rope; ++d) score += double{q_rope[d]} * keys[s][c.latent + d];
    const double weight = std::exp(score * c.shape().scale);
    sum += weight;
    for (int d = 0; d < c.latent; ++d) values[d] += weight * keys[s][d];
  }
  for (double& x : values) x /= sum;
  return values;
}

// Queries with gaps between heads and rows, and what attention makes of them.
struct Rows {
  Rows(const Case& c, int64_t rows, std::mt19937& rng)
      : latent(rows, c.heads * c.latent, rng),
        rope(rows, c.heads * (c.rope + 5), rng),
        out(rows, c.heads * c.latent) {}

  void Run(const Kernels& kernels, const Case& c, const LatentCache& cache,
           const std::vector<AttentionRow>& rows, int workers, std::mt19937& rng) {
    ForWorkers(workers, rng, [&](const Worker& worker) {
      kernels.latent_attention(c.shape(), cache, c.first_key, rows.data(),
                               static_cast<int64_t>(rows.size()), latent.in(), rope.in(),
                               c.rope + 5, out.out(), worker);
    });
    EXPECT_TRUE(out.GuardsHold());
  }

  TestRows latent, rope, out;
};

void ExpectReference(const Case& c, const Keys& keys, const AttentionRow& row, int64_t r,
                     Rows& rows) {
  for (int h = 0; h < c.heads; ++h) {
    const float* got = rows.out.row(r) + h * c.latent;
    const float* q_latent = rows.latent.row(r) + h * c.latent;
    const float* q_rope = rows.rope.row(r) + h * (c.rope + 5);
    if (!row.active || row.position < c.first_key) {
      for (int d = 0; d < c.latent; ++d) ASSERT_EQ(Bits(got[d]), 0u);
      continue;
    }
    const auto exact = Softmax(c, keys, row.position, q_latent, q_rope);
    const auto expected = Reference(c, keys, row.position, q_latent, q_rope);
    for (int d = 0; d < c.latent; ++d) {
      ASSERT_EQ(Bits(got[d]), Bits(expected[d])) << "row " << r << " head " << h << " at " << d;
      ASSERT_NEAR(got[d], exact[d], 1e-5);
    }
  }
}

// Rows around the borders of tiles, ascending and not, one inactive: all in one call.
void RunCase(const Kernels& kernels, const Case& c, int workers, std::mt19937& rng) {
  SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.latent << "+" << c.rope
                                  << ", block " << c.block_size << ", first key " << c.first_key
                                  << ", " << workers << " workers");
  const Sequence sequence(c, 131, rng);
  std::vector<AttentionRow> rows;
  for (const int32_t p : {62, 63, 64, 65, 66, 127, 128, 129, 130, 0, 1, 2, 130, 5, 64}) {
    rows.push_back({sequence.table.data(), p, rows.size() != 4});
  }
  Rows data(c, static_cast<int64_t>(rows.size()), rng);
  data.Run(kernels, c, sequence.cache, rows, workers, rng);
  for (size_t r = 0; r < rows.size(); ++r) {
    ExpectReference(c, sequence.keys, rows[r], static_cast<int64_t>(r), data);
  }
}

TEST_P(LatentAttention, GivesTheBitsOfTheReference) {
  std::mt19937 rng(1);
  int workers = 0;
  for (const LatentFormat format : kFormats) {
    for (const int32_t block_size : {1, 3, 16, 1000}) {
      for (const int32_t first_key : {0, 1}) {
        workers = workers % 5 + 1;
        RunCase(kernels(), {format, 3, 36, 6, block_size, first_key}, workers, rng);
      }
    }
  }
  for (const int heads : {0, 1, 8, 17})
    RunCase(kernels(), {.heads = heads, .first_key = 1}, 3, rng);
  for (const auto& [latent, rope] :
       std::vector<std::pair<int, int>>{{1, 2}, {64, 16}, {130, 2}, {256, 4}, {271, 2}}) {
    for (const LatentFormat format : kFormats) {
      RunCase(kernels(), {format, 2, latent, rope}, 2, rng);
    }
  }
  RunCase(kernels(), {.first_key = 70}, 2, rng);
}

TEST_P(LatentAttention, NoRows) {
  std::mt19937 rng(2);
  const Case c;
  Rows data(c, 0, rng);
  data.Run(kernels(), c, {}, {}, 3, rng);
}

// Sequences, lengths and inactive rows mixed: a row has the bits that it has alone.
TEST_P(LatentAttention, ARowDoesNotDependOnTheRowsBesideIt) {
  std::mt19937 rng(3);
  const Case c{.heads = 9};
  const Sequence sequence(c, 208, rng);
  // Another sequence: it shares the first two blocks, then has the same ones in another order.
  std::vector<int32_t> table = sequence.table;
  Keys keys = sequence.keys;
  std::swap(table[2], table[9]);
  std::swap_ranges(keys.begin() + 2 * 16, keys.begin() + 3 * 16, keys.begin() + 9 * 16);
  std::vector<AttentionRow> rows;
  std::vector<const Keys*> keys_of;
  for (int i = 0; i < 40; ++i) {
    const bool other = i / 3 % 2;
    rows.push_back({other ? table.data() : sequence.table.data(), static_cast<int32_t>(rng() % 208),
                    i % 9 != 5});
    keys_of.push_back(other ? &keys : &sequence.keys);
    if (!rows.back().active) rows.back().table = nullptr;
  }
  Rows together(c, 40, rng);
  for (int workers = 1; workers <= 5; ++workers) {
    together.Run(kernels(), c, sequence.cache, rows, workers, rng);
    for (int64_t r = 0; r < 40; ++r) ExpectReference(c, *keys_of[r], rows[r], r, together);
  }
}

// Blocks of one slot; those outside of [first_key, position] are billions of bytes away.
TEST_P(LatentAttention, MaskedKeysAreNeverRead) {
  std::mt19937 rng(4);
  for (const LatentFormat format : kFormats) {
    for (const int32_t first_key : {0, 1, 70}) {
      const Case c{.format = format, .block_size = 1, .first_key = first_key};
      const Sequence sequence(c, 140, rng);
      Rows data(c, 1, rng);
      for (int32_t position = 139; position >= first_key; position -= 7) {
        std::vector<int32_t> table = sequence.table;
        std::fill(table.begin(), table.begin() + first_key, 1 << 30);
        std::fill(table.begin() + position + 1, table.end(), 1 << 30);
        const std::vector<AttentionRow> rows = {{table.data(), position, true}};
        data.Run(kernels(), c, sequence.cache, rows, 1, rng);
        ExpectReference(c, sequence.keys, rows[0], 0, data);
      }
    }
  }
}

// Scores far apart: weights of exactly 0, and a fold from a tile that does not count any more.
TEST_P(LatentAttention, LargeScores) {
  std::mt19937 rng(5);
  const Case c{.heads = 2};
  const Sequence sequence(c, 200, rng);
  const std::vector<AttentionRow> rows = {{sequence.table.data(), 199, true}};
  Rows data(c, 1, rng);
  for (int i = 0; i < c.heads * c.latent; ++i) data.latent.row(0)[i] *= 300.0f;
  data.Run(kernels(), c, sequence.cache, rows, 1, rng);
  for (int h = 0; h < c.heads; ++h) {
    const auto expected = Reference(c, sequence.keys, 199, data.latent.row(0) + h * c.latent,
                                    data.rope.row(0) + h * (c.rope + 5));
    for (int d = 0; d < c.latent; ++d) {
      EXPECT_EQ(Bits(data.out.row(0)[h * c.latent + d]), Bits(expected[d]));
      EXPECT_TRUE(std::isfinite(expected[d]));
    }
  }
}

TEST(EncodeLatent, RoundsToTheFormatAndWritesNoMore) {
  const std::vector<float> values = {1.0f, -2.5f, std::bit_cast<float>(0x3f808001u)};
  alignas(8) std::byte bytes[16];
  std::fill_n(bytes, 16, std::byte{0x55});
  EncodeLatent(LatentFormat::kBf16, values.data(), 2, 1, bytes);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(bytes);
  EXPECT_EQ(halves[0], 0x3f80);
  EXPECT_EQ(halves[1], 0xc020);
  EXPECT_EQ(halves[2], 0x3f81);
  EXPECT_EQ(bytes[6], std::byte{0x55});
  EncodeLatent(LatentFormat::kFp32, values.data(), 2, 1, bytes);
  EXPECT_EQ(std::memcmp(bytes, values.data(), 12), 0);
  EXPECT_EQ(bytes[12], std::byte{0x55});
}

// Bytes in the order of the format, at an odd address.
TEST(EncodeLatent, Float8WritesCodesThenScalesThenRotary) {
  constexpr int64_t kLatent = 130, kSize = kLatent + 2 * 4 + 2;
  EXPECT_EQ(SlotBytes(LatentFormat::kFp8, kLatent, 1), kSize);
  EXPECT_EQ(SlotBytes(LatentFormat::kFp8, 512, 64), 656);
  std::vector<float> values(kLatent + 1, 0.0f);
  values[0] = 448.0f;    // scale 1
  values[1] = -1.125f;   // 0xb9
  values[128] = 449.0f;  // scale 2: 224.5 becomes 224
  values[129] = 0.0f;
  values[kLatent] = 1.0f;
  std::vector<std::byte> bytes(1 + kSize + 1, std::byte{0x55});
  EncodeLatent(LatentFormat::kFp8, values.data(), kLatent, 1, bytes.data() + 1);
  const auto at = [&](int64_t i) { return std::to_integer<int>(bytes[1 + i]); };
  EXPECT_EQ(at(0), 0x7e);
  EXPECT_EQ(at(1), 0xb9);
  EXPECT_EQ(at(2), 0);
  EXPECT_EQ(at(128), 0x76);
  float scales[2];
  std::memcpy(scales, bytes.data() + 1 + kLatent, 8);
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[1], 2.0f);
  EXPECT_EQ(at(kLatent + 8), 0x80);
  EXPECT_EQ(at(kLatent + 9), 0x3f);
  EXPECT_EQ(bytes.front(), std::byte{0x55});
  EXPECT_EQ(bytes.back(), std::byte{0x55});
}

// The scale of one block that holds `largest`, and what becomes of the value.
std::pair<float, uint8_t> EncodeOne(float largest) {
  std::byte slot[5];
  EncodeLatent(LatentFormat::kFp8, &largest, 1, 0, slot);
  float scale;
  std::memcpy(&scale, slot + 1, sizeof scale);
  return {scale, std::to_integer<uint8_t>(slot[0])};
}

TEST(EncodeLatent, Float8ScalesAreTheSmallestPowersOfTwo) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (float power = 0x1p-13f; power < 0x1p119f; power *= 2) {
    const float largest = 448.0f * power;
    EXPECT_EQ(EncodeOne(largest), (std::pair<float, uint8_t>(power, 0x7e)));
    EXPECT_EQ(EncodeOne(-largest), (std::pair<float, uint8_t>(power, 0xfe)));
    EXPECT_EQ(EncodeOne(std::nextafter(largest, kMax)),
              (std::pair<float, uint8_t>(2 * power, 0x76)));
  }
  EXPECT_EQ(EncodeOne(0.0f), (std::pair<float, uint8_t>(0x1p-13f, 0)));
  EXPECT_EQ(EncodeOne(1e-30f), (std::pair<float, uint8_t>(0x1p-13f, 0)));
  EXPECT_EQ(EncodeOne(kMax).first, 0x1p120f);
  EXPECT_EQ(EncodeOne(std::numeric_limits<float>::infinity()),
            (std::pair<float, uint8_t>(0x1p120f, 0x7e)));
}

// Infinity and NaN in one key reach the rows that see it, also as NaN, and no others.
TEST_P(LatentAttention, NaNInAKeyStaysThere) {
  std::mt19937 rng(7);
  for (const LatentFormat format : kFormats) {
    const Case c{.format = format, .latent = 150};
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Sequence sequence(c, 20, rng);
      std::vector<float> key(c.dim(), 1.0f);
      key[140] = bad;
      EncodeLatent(format, key.data(), c.latent, c.rope,
                   sequence.cache.Slot(sequence.table.data(), 15));
      Rows data(c, 2, rng);
      const std::vector<AttentionRow> rows = {{sequence.table.data(), 14, true},
                                              {sequence.table.data(), 15, true}};
      data.Run(kernels(), c, sequence.cache, rows, 1, rng);
      ExpectReference(c, sequence.keys, rows[0], 0, data);
      EXPECT_FALSE(std::isfinite(data.out.row(1)[140]));
    }
  }
}

TEST(RopeTable, AgreesWithLongDouble) {
  const std::vector<float> inv_freq = {1.0f, 0.31622776f, 0.0123f};
  const RopeTable table(inv_freq, 1.25f, 4096);
  EXPECT_EQ(table.bytes(), 4096u * 3 * 2 * sizeof(float));
  std::mt19937 rng(6);
  for (const int64_t position : {0, 1, 2, 63, 64, 1000, 4095}) {
    std::vector<float> x(6), before;
    for (float& v : x) v = RandomFloat(rng);
    before = x;
    table.Rotate(position, x.data());
    for (int i = 0; i < 3; ++i) {
      const float angle = static_cast<float>(position) * inv_freq[i];  // FP32: MODEL.md 2.1
      const long double cos = 1.25L * std::cos(static_cast<long double>(angle));
      const long double sin = 1.25L * std::sin(static_cast<long double>(angle));
      const long double a = before[2 * i], b = before[2 * i + 1];
      EXPECT_NEAR(x[2 * i], static_cast<double>(a * cos - b * sin), 1e-6) << position;
      EXPECT_NEAR(x[2 * i + 1], static_cast<double>(a * sin + b * cos), 1e-6) << position;
    }
  }
}

}  // namespace
}  // namespace tandem
