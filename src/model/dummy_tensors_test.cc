#include "model/dummy_tensors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/test_tensors.h"
#include "ops/test_rows.h"

namespace tandem {
namespace {

constexpr const char* kProjection = "model.layers.1.mlp.up_proj.weight";

ModelConfig Config(bool fp8) {
  ModelConfig config = TestModelConfig("tandem-tiny");
  config.quantization = {fp8, fp8 ? 40 : 0, fp8 ? 24 : 0};
  return config;
}

std::string ReadAll(const TensorSource& source, const TensorInfo& tensor) {
  std::string bytes(tensor.bytes, '\0');
  EXPECT_TRUE(source.Read(tensor, 0, std::as_writable_bytes(std::span(bytes))).ok());
  return bytes;
}

std::string ReadAll(DummyTensors& source, const std::string& name) {
  return ReadAll(source, *source.Take(name, {50, 60}, TensorFormats::kPlainOrFp8));
}

TEST(DummyTensors, FormatsAreThoseOfPublishedCheckpoints) {
  DummyTensors bf16(Config(false), 1), fp8(Config(true), 1);
  const struct {
    const char* name;
    bool fp8;
  } kCases[] = {{"model.layers.0.self_attn.q_a_proj.weight", true},
                {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", true},
                {"model.layers.4.mlp.experts.3.down_proj.weight", true},
                {"model.layers.4.mlp.shared_experts.gate_proj.weight", true},
                {"model.layers.4.eh_proj.weight", false}};
  for (const auto& test : kCases) {
    EXPECT_EQ(fp8.Take(test.name, {64, 32}, TensorFormats::kPlainOrFp8)->dtype,
              test.fp8 ? DType::kF8E4M3 : DType::kBF16)
        << test.name;
    EXPECT_EQ(bf16.Take(test.name, {64, 32}, TensorFormats::kPlainOrFp8)->dtype, DType::kBF16);
  }
  EXPECT_EQ(fp8.Take("lm_head.weight", {64, 32})->dtype, DType::kBF16);
  EXPECT_EQ(fp8.Take("model.layers.1.mlp.gate.weight", {64, 32})->dtype, DType::kBF16);
  EXPECT_EQ(fp8.Take("model.layers.1.mlp.gate.e_score_correction_bias", {64})->dtype, DType::kF32);
  EXPECT_FALSE(fp8.Has("model.layers.4.embed_tokens.weight"));
  EXPECT_FALSE(fp8.Has("model.layers.4.shared_head.head.weight"));
  EXPECT_TRUE(fp8.Has("model.embed_tokens.weight"));
  EXPECT_TRUE(fp8.Finish().ok());
}

TEST(DummyTensors, AnElementDependsOnSeedNameAndIndexAlone) {
  for (const bool quantized : {false, true}) {
    DummyTensors a(Config(quantized), 7), b(Config(quantized), 7), other(Config(quantized), 8);
    const std::string whole = ReadAll(a, kProjection);
    EXPECT_EQ(ReadAll(b, kProjection), whole);
    EXPECT_NE(ReadAll(other, kProjection), whole);
    EXPECT_NE(ReadAll(a, "model.layers.2.mlp.up_proj.weight"), whole);
    const TensorInfo* tensor = a.Take(kProjection, {50, 60}, TensorFormats::kPlainOrFp8);
    const size_t size = DTypeSize(tensor->dtype);
    for (const size_t begin : {1, 17, 999}) {
      std::string part(size * 1234, '\0');
      ASSERT_TRUE(a.Read(*tensor, begin * size, std::as_writable_bytes(std::span(part))).ok());
      EXPECT_EQ(part, whole.substr(begin * size, part.size()));
    }
  }
}

// Beyond 2^32 counters the pattern does not begin again, and a read across the border is the two
// reads on its sides.
TEST(DummyTensors, LargeTensors) {
  DummyTensors source(Config(true), 7);
  const TensorInfo* tensor =
      source.Take(kProjection, {int64_t{1} << 18, int64_t{1} << 18}, TensorFormats::kPlainOrFp8);
  const auto read = [&](uint64_t begin, size_t count) {
    std::string bytes(count, '\0');
    EXPECT_TRUE(source.Read(*tensor, begin, std::as_writable_bytes(std::span(bytes))).ok());
    return bytes;
  };
  const uint64_t border = uint64_t{4} << 32;  // four codes per counter
  EXPECT_NE(read(0, 100), read(border, 100));
  EXPECT_EQ(read(border - 50, 100), read(border - 50, 50) + read(border, 50));
}

// Variance 1 / inputs, mean 0, whatever the format; no NaN.
TEST(DummyTensors, MatricesKeepTheSizeOfActivations) {
  for (const bool quantized : {false, true}) {
    const ModelConfig config = Config(quantized);
    DummyTensors source(config, 5);
    const TensorInfo* tensor = source.Take(kProjection, {300, 240}, TensorFormats::kPlainOrFp8);
    double sum = 0, squares = 0;
    for (const float value : ReadFloats(source, *tensor, config.quantization)) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const double count = 300.0 * 240;
    EXPECT_NEAR(squares / count * 240, 1.0, 0.05);
    EXPECT_NEAR(sum / count * std::sqrt(240.0), 0.0, 0.02);
  }
}

TEST(DummyTensors, NormsAreOneAndBiasesZero) {
  DummyTensors source(Config(true), 5);
  for (const float v : ReadFloats(source, *source.Take("model.norm.weight", {33}))) {
    EXPECT_EQ(v, 1.0f);
  }
  const TensorInfo* bias = source.Take("model.layers.1.mlp.gate.e_score_correction_bias", {33});
  for (const float v : ReadFloats(source, *bias)) EXPECT_EQ(v, 0.0f);
}

// Each part of a layout is cut from the same values, however many threads load it.
TEST(DummyTensors, LayoutsAndThreadsHoldTheSameBits) {
  const ModelConfig config = Config(true);
  DummyTensors source(config, 9);
  LoadOptions options = TestLoadOptions(true);
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{1, 1}, {4, 2}, {16, 4}}) {
    const Layout layout = *Layout::Make(tp, dp);
    options.num_threads = 1;
    const auto one = std::move(*ModelWeights::Load(source, config, layout, options));
    options.num_threads = 5;
    const auto five = std::move(*ModelWeights::Load(source, config, layout, options));
    for (int64_t layer = 0; layer < one->num_layers(); ++layer) {
      ExpectSameLayer(*one, layer, *five, layer);
    }
    EXPECT_EQ(&one->mtp_embedding(), &one->embedding());
    // Experts are whole in every layout.
    const std::string name = "model.layers.2.mlp.experts.5.gate_proj.weight";
    const TensorInfo* tensor = source.Take(name, {config.moe_intermediate_size, config.hidden_size},
                                           TensorFormats::kPlainOrFp8);
    const std::vector<float> all = ReadFloats(source, *tensor, config.quantization);
    for (int rank = 0; rank < tp; ++rank) {
      const FfnShard& shard = one->ffn(2, rank);
      if (shard.expert_range.begin > 5 || shard.expert_range.end <= 5) continue;
      const PackedMatrix& w = shard.experts[5 - shard.expert_range.begin].gate;
      for (int64_t n = 0; n < w.columns(); ++n) {
        ASSERT_EQ(Element(w, n, n + 1), all[n * config.hidden_size + n + 1]);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
