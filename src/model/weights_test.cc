#include "model/weights.h"

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/test_models.h"
#include "ops/test_rows.h"

namespace tandem {
namespace {

// Segment bounds of one rank: from 0, rising, to everything that it owns.
void ExpectBounds(const std::vector<int32_t>& bounds, int ranks, int64_t own) {
  ASSERT_EQ(bounds.size(), static_cast<size_t>(kNumSegments / ranks + 1));
  EXPECT_EQ(bounds.front(), 0);
  EXPECT_EQ(bounds.back(), own);
  EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
}

void ExpectHeadsOnce(const ModelWeights& w, int64_t layer) {
  const ModelConfig& c = w.config();
  const int ranks = w.layout().attn_tp_size();
  int64_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const AttentionShard& shard = w.attention(layer, rank);
    EXPECT_EQ(shard.heads.begin, next);
    next = shard.heads.end;
    EXPECT_EQ(shard.query.columns(), shard.heads.size() * c.qk_head_dim());
    EXPECT_EQ(shard.output.depth(), shard.heads.size() * c.v_head_dim);
    ASSERT_EQ(static_cast<int64_t>(shard.key_up.size()), shard.heads.size());
    ASSERT_EQ(static_cast<int64_t>(shard.value_up.size()), shard.heads.size());
    ExpectBounds(shard.output_bounds, ranks, shard.output.depth());
    // Segments hold whole heads.
    for (const int32_t bound : shard.output_bounds) EXPECT_EQ(bound % c.v_head_dim, 0);
  }
  EXPECT_EQ(next, c.num_attention_heads);
  for (int rank = 0; rank < w.layout().tp_size(); ++rank) {  // replicas share one copy
    EXPECT_EQ(&w.attention(layer, rank), &w.attention(layer, rank % ranks));
  }
}

void ExpectFfnOnce(const ModelWeights& w, int64_t layer) {
  const ModelConfig& c = w.config();
  const bool moe = c.IsMoeLayer(layer);
  const int ranks = w.layout().tp_size();
  int64_t columns = 0, experts = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const FfnShard& shard = w.ffn(layer, rank);
    columns += shard.mlp.gate.columns();
    EXPECT_EQ(shard.mlp.up.columns(), shard.mlp.gate.columns());
    EXPECT_EQ(shard.mlp.down.depth(), shard.mlp.gate.columns());
    ExpectBounds(shard.mlp.down_bounds, ranks, shard.mlp.down.depth());
    EXPECT_EQ(static_cast<int64_t>(shard.experts.size()), shard.expert_range.size());
    if (!moe) continue;
    EXPECT_EQ(shard.expert_range.begin, experts);
    experts = shard.expert_range.end;
    ExpectBounds(shard.expert_bounds, ranks, shard.expert_range.size());
  }
  EXPECT_EQ(columns, moe ? c.moe_intermediate_size * c.n_shared_experts : c.intermediate_size);
  EXPECT_EQ(experts, moe ? c.n_routed_experts : 0);
}

TEST(Weights, EveryLayoutOwnsEveryPartOnce) {
  for (const std::string model : kTestModels) {
    for (const Layout& layout : AllLayouts()) {
      SCOPED_TRACE(model + " " + LayoutName(layout));
      const auto w = LoadTestModel(model, layout);
      ASSERT_EQ(w->num_layers(), w->config().num_hidden_layers + w->num_mtp_modules());
      for (int64_t layer = 0; layer < w->num_layers(); ++layer) {
        ExpectHeadsOnce(*w, layer);
        ExpectFfnOnce(*w, layer);
      }
      int64_t vocab = 0;
      for (int rank = 0; rank < layout.tp_size(); ++rank) {
        EXPECT_EQ(w->VocabOf(rank).begin, vocab);
        vocab = w->VocabOf(rank).end;
        EXPECT_EQ(w->head(rank).columns(), w->VocabOf(rank).size());
        EXPECT_EQ(w->head(rank).depth(), w->config().hidden_size);
      }
      EXPECT_EQ(vocab, w->config().vocab_size);
    }
  }
}

// ---- The parts are the right ones: compared with the file, element by element ----

class File {
 public:
  explicit File(const std::string& model)
      : checkpoint_(std::move(*Checkpoint::Open(TestModelFolder(model)))),
        quantization_(TestModelConfig(model).quantization) {}

  // The rows [n0, n0 + columns of w) and columns [k0, k0 + depth of w) of the tensor are w, or its
  // transpose.
  void Expect(const std::string& name, std::vector<int64_t> shape, const PackedMatrix& w,
              int64_t n0, int64_t k0, bool transposed = false) {
    const TensorInfo* tensor = checkpoint_->Take(name, shape, TensorFormats::kPlainOrFp8);
    ASSERT_NE(tensor, nullptr) << name;
    const std::vector<float> all = ReadFloats(*checkpoint_, *tensor, quantization_);
    for (int64_t n = 0; n < w.columns(); ++n) {
      for (int64_t k = 0; k < w.depth(); ++k) {
        const int64_t row = transposed ? n0 + k : n0 + n, column = transposed ? k0 + n : k0 + k;
        // A check per element, only if they differ: there are millions.
        if (Bits(Element(w, n, k)) == Bits(all[row * shape[1] + column])) continue;
        FAIL() << name << " (" << n << ", " << k << "): " << Element(w, n, k) << " instead of "
               << all[row * shape[1] + column];
      }
    }
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  const QuantizationConfig quantization_;
};

void ExpectAttentionOfFile(File& file, const ModelWeights& w, int64_t layer, int rank) {
  const ModelConfig& c = w.config();
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  const int64_t heads = c.num_attention_heads, nope = c.qk_nope_head_dim, v = c.v_head_dim;
  const AttentionShard& shard = w.attention(layer, rank);
  const bool low_rank = c.q_lora_rank > 0;
  file.Expect(prefix + (low_rank ? "q_b_proj.weight" : "q_proj.weight"),
              {heads * c.qk_head_dim(), low_rank ? c.q_lora_rank : c.hidden_size}, shard.query,
              shard.heads.begin * c.qk_head_dim(), 0);
  file.Expect(prefix + "o_proj.weight", {c.hidden_size, heads * v}, shard.output, 0,
              shard.heads.begin * v);
  for (int64_t h = 0; h < shard.heads.size(); ++h) {
    const int64_t row = (shard.heads.begin + h) * (nope + v);
    const std::vector<int64_t> shape = {heads * (nope + v), c.kv_lora_rank};
    EXPECT_EQ(shard.key_up[h].depth(), nope);
    EXPECT_EQ(shard.value_up[h].columns(), v);
    file.Expect(prefix + "kv_b_proj.weight", shape, shard.key_up[h], row, 0, /*transposed=*/true);
    file.Expect(prefix + "kv_b_proj.weight", shape, shard.value_up[h], row + nope, 0);
  }
}

void ExpectFfnOfFile(File& file, const ModelWeights& w, int64_t layer, int rank, int64_t first) {
  const ModelConfig& c = w.config();
  const bool moe = c.IsMoeLayer(layer);
  const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.";
  const std::string mlp = prefix + (moe ? "shared_experts." : "");
  const int64_t width = moe ? c.moe_intermediate_size * c.n_shared_experts : c.intermediate_size;
  const FfnShard& shard = w.ffn(layer, rank);
  file.Expect(mlp + "gate_proj.weight", {width, c.hidden_size}, shard.mlp.gate, first, 0);
  file.Expect(mlp + "up_proj.weight", {width, c.hidden_size}, shard.mlp.up, first, 0);
  file.Expect(mlp + "down_proj.weight", {c.hidden_size, width}, shard.mlp.down, 0, first);
  for (int64_t e = 0; e < shard.expert_range.size(); ++e) {
    const std::string expert =
        prefix + "experts." + std::to_string(shard.expert_range.begin + e) + ".";
    const std::vector<int64_t> up = {c.moe_intermediate_size, c.hidden_size};
    const std::vector<int64_t> down = {c.hidden_size, c.moe_intermediate_size};
    file.Expect(expert + "gate_proj.weight", up, shard.experts[e].gate, 0, 0);
    file.Expect(expert + "up_proj.weight", up, shard.experts[e].up, 0, 0);
    file.Expect(expert + "down_proj.weight", down, shard.experts[e].down, 0, 0);
  }
}

void ExpectCommonOfFile(File& file, const ModelWeights& w, int64_t layer) {
  const ModelConfig& c = w.config();
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const LayerCommon& common = w.common(layer);
  if (c.q_lora_rank > 0) {
    file.Expect(prefix + "self_attn.q_a_proj.weight", {c.q_lora_rank, c.hidden_size}, common.q_a, 0,
                0);
  }
  file.Expect(prefix + "self_attn.kv_a_proj_with_mqa.weight",
              {c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size}, common.kv_a, 0, 0);
  if (!c.IsMoeLayer(layer)) return;
  EXPECT_EQ(common.router.type(), WeightType::kFp32);
  EXPECT_EQ(common.router_bias.size() > 0, c.router == RouterKind::kNoauxTc);
  file.Expect(prefix + "mlp.gate.weight", {c.n_routed_experts, c.hidden_size}, common.router, 0, 0);
}

void ExpectPartsOfFile(const std::string& model, const Layout& layout) {
  SCOPED_TRACE(model + " " + LayoutName(layout));
  File file(model);
  const auto w = LoadTestModel(model, layout);
  const ModelConfig& c = w->config();
  for (int64_t layer = 0; layer < w->num_layers(); ++layer) {
    int64_t columns = 0;
    for (int rank = 0; rank < layout.tp_size(); ++rank) {
      if (rank < layout.attn_tp_size()) ExpectAttentionOfFile(file, *w, layer, rank);
      ExpectFfnOfFile(file, *w, layer, rank, columns);
      const MlpShard& mlp = w->ffn(layer, rank).mlp;
      const bool fp8 = mlp.down.type() == WeightType::kFp8;
      EXPECT_EQ(mlp.unit, fp8 ? c.quantization.block_columns : kMlpUnit);
      EXPECT_TRUE(mlp.gate.columns() == 0 || mlp.first_unit * mlp.unit == columns);
      columns += mlp.gate.columns();
    }
    ExpectCommonOfFile(file, *w, layer);
  }
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    file.Expect("lm_head.weight", {c.vocab_size, c.hidden_size}, w->head(rank),
                w->VocabOf(rank).begin, 0);
  }
  if (!w->has_mtp()) return;
  file.Expect("model.layers." + std::to_string(c.num_hidden_layers) + ".eh_proj.weight",
              {c.hidden_size, 2 * c.hidden_size}, w->mtp().eh_proj, 0, 0);
}

TEST(Weights, PartsAreThoseOfTheFile) {
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{1, 1}, {4, 2}, {8, 8}, {16, 1}}) {
    for (const char* model : {"v3-odd-mtp", "tandem-tiny-fp8", "v2-greedy", "v3-no-q-lora"}) {
      ExpectPartsOfFile(model, *Layout::Make(tp, dp));
    }
  }
}

TEST(Weights, ModulesAreThereIfTheFileHasThem) {
  for (const std::string model : kTestModels) {
    const auto w = LoadTestModel(model, *Layout::Make(1, 1));
    const MtpState expected = model == "v3-no-q-lora"                    ? MtpState::kAbsent
                              : w->config().num_nextn_predict_layers > 0 ? MtpState::kLoaded
                                                                         : MtpState::kNone;
    EXPECT_EQ(w->mtp_state(), expected) << model;
    EXPECT_EQ(w->has_mtp(), expected == MtpState::kLoaded) << model;
  }
}

TEST(Weights, WithoutMtpTheModuleIsLeftOut) {
  const auto w = LoadTestModel("v3-odd-mtp", *Layout::Make(2, 1), /*with_mtp=*/false);
  EXPECT_FALSE(w->has_mtp());
  EXPECT_EQ(w->num_layers(), w->config().num_hidden_layers);
}

TEST(Weights, ProgressRisesToOne) {
  std::vector<double> seen;
  LoadOptions options = TestLoadOptions(/*with_mtp=*/true);
  options.progress = [&](double fraction) { seen.push_back(fraction); };
  const auto w = ModelWeights::Load(TestModelFolder("v3-odd-mtp"), TestModelConfig("v3-odd-mtp"),
                                    *Layout::Make(2, 2), options);
  ASSERT_TRUE(w.ok());
  ASSERT_GE(seen.size(), 2u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_GT(seen.front(), 0.0);
  EXPECT_EQ(seen.back(), 1.0);
}

}  // namespace
}  // namespace tandem
