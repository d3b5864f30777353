// FP8 checkpoints: which are accepted, in which formats of scales, and what is refused by name.
// Their bits are in weights_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/test_models.h"
#include "model/test_tensors.h"

namespace tandem {
namespace {

constexpr const char* kModel = "tandem-tiny-fp8";
constexpr const char* kDown = "model.layers.2.mlp.experts.3.down_proj.weight";
constexpr const char* kScales = "model.layers.2.mlp.experts.3.down_proj.weight_scale_inv";

const TestTensors& Whole() {
  static const TestTensors tensors = ReadModelTensors(kModel);
  return tensors;
}

Result<std::unique_ptr<ModelWeights>> LoadFrom(const TestFolder& folder,
                                               const ModelConfig& config) {
  return ModelWeights::Load(folder.path(), config, *Layout::Make(4, 2), TestLoadOptions(true));
}

std::string Refusal(const TestTensors& tensors,
                    const ModelConfig& config = TestModelConfig(kModel)) {
  const TestFolder folder;
  WriteTensors(folder, tensors);
  const auto weights = LoadFrom(folder, config);
  if (weights.ok()) return "accepted";
  EXPECT_EQ(weights.status().code(), StatusCode::kInvalidArgument);
  return weights.status().message();
}

void SetFloat(TestTensor& tensor, size_t index, float value) {
  std::memcpy(tensor.data.data() + index * sizeof value, &value, sizeof value);
}

TEST(Fp8Weights, TheModelIsAccepted) {
  EXPECT_EQ(Refusal(Whole()), "accepted");
}

TEST(Fp8Weights, CodesThatAreNaNAreRefused) {
  for (const char code : {'\x7f', '\xff'}) {
    TestTensors tensors = Whole();
    tensors[kDown].data[12345] = code;
    EXPECT_TRUE(Contains(Refusal(tensors),
                         std::string("tensor \"") + kDown + "\" has an FP8 code that is NaN"));
  }
}

TEST(Fp8Weights, ScalesMustBeFinite) {
  for (const float scale : {INFINITY, -INFINITY, NAN}) {
    TestTensors tensors = Whole();
    SetFloat(tensors[kScales], 1, scale);
    EXPECT_TRUE(Contains(Refusal(tensors),
                         std::string("tensor \"") + kScales + "\" has a scale that is not finite"));
  }
  TestTensors tensors = Whole();
  SetFloat(tensors[kScales], 1, -0.0f);
  EXPECT_EQ(Refusal(tensors), "accepted");
}

TEST(Fp8Weights, WeightsAndScalesBelongTogether) {
  TestTensors tensors = Whole();
  tensors.erase(kScales);
  EXPECT_TRUE(Contains(Refusal(tensors), std::string("1 missing: ") + kScales));

  tensors = Whole();
  tensors[kDown] = {DType::kBF16, {256, 128}, std::string(256 * 128 * 2, '\0')};
  EXPECT_TRUE(Contains(Refusal(tensors), std::string("1 left over: \"") + kScales));
  tensors.erase(kScales);
  EXPECT_EQ(Refusal(tensors), "accepted");  // every tensor has its own format

  tensors = Whole();
  tensors[kScales].shape = {1, 2};
  EXPECT_TRUE(Contains(Refusal(tensors), std::string("1 of the wrong shape: ") + kScales));

  tensors = Whole();
  tensors[kScales] = {DType::kBF16, {2, 1}, std::string(4, '\0')};
  EXPECT_TRUE(Contains(Refusal(tensors), std::string(kScales) + " BF16"));

  tensors = Whole();
  tensors[kDown].dtype = DType::kF8E5M2;
  EXPECT_TRUE(Contains(Refusal(tensors), std::string(kDown) + " F8_E5M2"));
}

TEST(Fp8Weights, NeedAQuantizationConfig) {
  ModelConfig config = TestModelConfig(kModel);
  config.quantization = {};
  EXPECT_TRUE(
      Contains(Refusal(Whole(), config),
               "model.layers.0.mlp.down_proj.weight F8_E4M3 without a quantization_config"));
}

TEST(Fp8Weights, OnlyProjectionsMayBeFp8) {
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.0.self_attn.kv_a_layernorm.weight", "model.layers.4.embed_tokens.weight",
        "model.layers.4.shared_head.head.weight"}) {
    TestTensors tensors = Whole();
    TestTensor& tensor = tensors[name];
    tensor.data.resize(tensor.data.size() / DTypeSize(tensor.dtype));
    tensor.dtype = DType::kF8E4M3;
    EXPECT_TRUE(Contains(Refusal(tensors), std::string(name) + " F8_E4M3"));
  }
}

TEST(Fp8Weights, PowersOfTwoInOneByteAreTheSameScales) {
  TestTensors floats = Whole(), bytes = Whole();
  int exponent = 90;
  for (auto& [name, tensor] : floats) {
    if (!name.ends_with("_scale_inv")) continue;
    TestTensor& small = bytes[name];
    const size_t count = tensor.data.size() / sizeof(float);
    small = {DType::kF8E8M0, tensor.shape, std::string(count, '\0')};
    for (size_t i = 0; i < count; ++i, exponent = exponent == 200 ? 0 : exponent + 1) {
      SetFloat(tensor, i, std::ldexp(1.0f, exponent - 127));
      small.data[i] = static_cast<char>(exponent);
    }
  }
  const TestFolder folder_a, folder_b;
  WriteTensors(folder_a, floats);
  WriteTensors(folder_b, bytes);
  const auto a = LoadFrom(folder_a, TestModelConfig(kModel));
  const auto b = LoadFrom(folder_b, TestModelConfig(kModel));
  ASSERT_TRUE(a.ok() && b.ok());
  for (int64_t layer = 0; layer < (*a)->num_layers(); ++layer) {
    ExpectSameLayer(**a, layer, **b, layer);
  }
  bytes[kScales].data[1] = '\xff';
  EXPECT_TRUE(Contains(Refusal(bytes), std::string(kScales) + "\" has a scale that is not finite"));
}

TEST(Fp8Weights, AWeightAndItsScalesMayLieInDifferentShards) {
  TestTensors weights = Whole(), scales;
  std::string map;
  for (const auto& [name, tensor] : Whole()) {
    const bool scale = name.ends_with("_scale_inv");
    if (scale) scales.insert(weights.extract(name));
    map += (map.empty() ? "{\"" : ",\"") + name + (scale ? "\":\"b\"" : "\":\"a\"");
  }
  const TestFolder folder;
  WriteTensors(folder, weights, "a");
  WriteTensors(folder, scales, "b");
  folder.Write("model.safetensors.index.json", "{\"weight_map\":" + map + "}}");
  const auto split = LoadFrom(folder, TestModelConfig(kModel));
  ASSERT_TRUE(split.ok()) << split.status().message();
  const auto whole = LoadTestModel(kModel, *Layout::Make(4, 2));
  for (int64_t layer = 0; layer < whole->num_layers(); ++layer) {
    ExpectSameLayer(*whole, layer, **split, layer);
  }
}

}  // namespace
}  // namespace tandem
