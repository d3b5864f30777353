// What a rank holds and what ranks share, in bytes, against numbers computed from the config alone.
// All matrices of the two models are BF16, except for FP32 routers.
#include <gtest/gtest.h>

#include "model/test_models.h"

namespace tandem {
namespace {

// A packed matrix: columns are padded to panels of 16.
int64_t Matrix(int64_t columns, int64_t depth, int64_t element_bytes = 2) {
  return (columns + 15) / 16 * 16 * depth * element_bytes;
}

int64_t AttentionBytes(const ModelConfig& c, int64_t heads) {
  return Matrix(heads * c.qk_head_dim(), c.q_lora_rank) +
         heads *
             (Matrix(c.kv_lora_rank, c.qk_nope_head_dim) + Matrix(c.v_head_dim, c.kv_lora_rank)) +
         Matrix(c.hidden_size, heads * c.v_head_dim);
}

// Units [rU/N, (r+1)U/N) of rank r: what 16 / N adjacent segments hold.
int64_t Own(int64_t units, int rank, int ranks) {
  return (rank + 1) * units / ranks - rank * units / ranks;
}

// Columns of a gated MLP go in units of 16; the last unit may be smaller.
int64_t OwnColumns(int64_t width, int rank, int ranks) {
  const int64_t units = (width + 15) / 16;
  return std::min((rank + 1) * units / ranks * 16, width) -
         std::min(rank * units / ranks * 16, width);
}

int64_t GatedBytes(const ModelConfig& c, int64_t width) {
  return 2 * Matrix(width, c.hidden_size) + Matrix(c.hidden_size, width);
}

int64_t FfnBytes(const ModelConfig& c, int64_t layer, int rank, int ranks) {
  if (!c.IsMoeLayer(layer)) return GatedBytes(c, OwnColumns(c.intermediate_size, rank, ranks));
  const int64_t shared = c.moe_intermediate_size * c.n_shared_experts;
  return GatedBytes(c, OwnColumns(shared, rank, ranks)) +
         Own(c.n_routed_experts, rank, ranks) * GatedBytes(c, c.moe_intermediate_size);
}

int64_t RankBytes(const ModelConfig& c, const Layout& layout, int rank, int64_t layers) {
  const int tp = layout.tp_size();
  int64_t bytes = Matrix(Own(c.vocab_size, rank, tp), c.hidden_size);
  for (int64_t layer = 0; layer < layers; ++layer) {
    bytes += FfnBytes(c, layer, rank, tp);
    if (layout.dp_size() == 1) bytes += AttentionBytes(c, Own(c.num_attention_heads, rank, tp));
  }
  return bytes;
}

int64_t CommonBytes(const ModelConfig& c, int64_t layer) {
  const int64_t norms = 4 * (2 * c.hidden_size + c.q_lora_rank + c.kv_lora_rank);
  const int64_t matrices = Matrix(c.q_lora_rank, c.hidden_size) +
                           Matrix(c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size);
  const int64_t router = Matrix(c.n_routed_experts, c.hidden_size, 4) + 4 * c.n_routed_experts;
  return norms + matrices + (c.IsMoeLayer(layer) ? router : 0);
}

int64_t SharedBytes(const ModelConfig& c, const Layout& layout, int64_t layers) {
  int64_t bytes = 2 * c.vocab_size * c.hidden_size + 4 * c.hidden_size +
                  4 * kTestPositions * c.qk_rope_head_dim;
  const int ranks = layout.attn_tp_size();
  for (int64_t layer = 0; layer < layers; ++layer) {
    bytes += CommonBytes(c, layer);
    // With several replicas a shard of heads has several users.
    for (int i = 0; layout.dp_size() > 1 && i < ranks; ++i) {
      bytes += AttentionBytes(c, Own(c.num_attention_heads, i, ranks));
    }
  }
  const bool mtp = layers > c.num_hidden_layers;
  return bytes + (mtp ? 3 * 4 * c.hidden_size + Matrix(c.hidden_size, 2 * c.hidden_size) : 0);
}

TEST(WeightBytes, AreWhatTheConfigSays) {
  for (const std::string model : {"tandem-tiny", "v3-odd-mtp"}) {
    const ModelConfig c = TestModelConfig(model);
    for (const Layout& layout : AllLayouts()) {
      for (const bool with_mtp : {false, true}) {
        SCOPED_TRACE(model + " " + LayoutName(layout) + (with_mtp ? " with MTP" : ""));
        const auto w = LoadTestModel(model, layout, with_mtp);
        const int64_t layers = c.num_hidden_layers + (with_mtp ? 1 : 0);
        EXPECT_EQ(w->SharedBytes(), SharedBytes(c, layout, layers));
        for (int rank = 0; rank < layout.tp_size(); ++rank) {
          EXPECT_EQ(w->RankBytes(rank), RankBytes(c, layout, rank, layers)) << "rank " << rank;
        }
      }
    }
  }
}

// Everything in tandem-tiny divides by 8, and no part needs padding: a rank of N holds 1/N, and
// nothing exists twice. With replicas, attention is in no rank's own bytes but in the shared ones,
// once.
TEST(WeightBytes, ARankHoldsItsPartAndNoMore) {
  const ModelConfig c = TestModelConfig("tandem-tiny");
  const auto whole = LoadTestModel("tandem-tiny", *Layout::Make(1, 1));
  const int64_t attention = (c.num_hidden_layers + 1) * AttentionBytes(c, c.num_attention_heads);
  for (const Layout& layout : AllLayouts()) {
    SCOPED_TRACE(LayoutName(layout));
    const auto w = LoadTestModel("tandem-tiny", layout);
    const int64_t moved = layout.dp_size() > 1 ? attention : 0;
    int64_t sum = 0;
    for (int rank = 0; rank < layout.tp_size(); ++rank) {
      sum += w->RankBytes(rank);
      if (layout.tp_size() <= 8) {
        EXPECT_EQ(w->RankBytes(rank) * layout.tp_size(), whole->RankBytes(0) - moved);
      }
    }
    EXPECT_EQ(sum, whole->RankBytes(0) - moved);
    EXPECT_EQ(w->SharedBytes(), whole->SharedBytes() + moved);
  }
}

}  // namespace
}  // namespace tandem
