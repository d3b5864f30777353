// Loads the project's small models in any layout. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/pack.h"
#include "model/weights.h"

namespace tandem {

inline constexpr const char* kTestModels[] = {"tandem-tiny",      "tandem-tiny-fp8", "v2-greedy",
                                              "v2-group-limited", "v3-no-norm-topk", "v3-no-q-lora",
                                              "v3-odd-mtp"};
inline constexpr int64_t kTestPositions = 100;

inline std::string TestModelFolder(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/models/" + name;
}

inline ModelConfig TestModelConfig(const std::string& name) {
  auto config = LoadModelConfig(TestModelFolder(name));
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

// Every layout that may be asked for.
inline std::vector<Layout> AllLayouts() {
  std::vector<Layout> layouts;
  for (const int tp : {1, 2, 4, 8, 16}) {
    for (int dp = 1; dp <= tp; dp *= 2) layouts.push_back(*Layout::Make(tp, dp));
  }
  return layouts;
}

inline std::string LayoutName(const Layout& layout) {
  return "tp" + std::to_string(layout.tp_size()) + " dp" + std::to_string(layout.dp_size());
}

// All elements of a tensor [rows, columns], FP8 times its scales: the definition (MODEL.md 4), one
// number at a time.
inline std::vector<float> ReadFloats(TensorSource& source, const TensorInfo& tensor,
                                     const QuantizationConfig& quantization = {}) {
  std::vector<std::byte> bytes(tensor.bytes);
  EXPECT_TRUE(source.Read(tensor, 0, bytes).ok());
  std::vector<float> floats(tensor.elements());
  if (tensor.dtype != DType::kF8E4M3) {
    WidenToFloats(tensor.dtype, bytes.data(), floats);
    return floats;
  }
  const int64_t block_rows = quantization.block_rows, block_columns = quantization.block_columns;
  const int64_t columns = tensor.shape[1], across = CeilDiv(columns, block_columns);
  const TensorInfo* scales =
      source.Take(tensor.name + "_scale_inv", {CeilDiv(tensor.shape[0], block_rows), across},
                  TensorFormats::kScales);
  const std::vector<float> scale = ReadFloats(source, *scales);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const int64_t block = i / columns / block_rows * across + i % columns / block_columns;
    floats[i] = Float8E4M3{static_cast<uint8_t>(bytes[i])}.ToFloat() * scale[block];
  }
  return floats;
}

// `with_mtp` asks for what MTP modules there are.
inline LoadOptions TestLoadOptions(bool with_mtp) {
  LoadOptions options;
  options.mtp = with_mtp ? MtpUse::kIfPresent : MtpUse::kLeaveOut;
  options.positions = kTestPositions;
  options.num_threads = 2;
  return options;
}

inline std::unique_ptr<ModelWeights> LoadTestModel(const std::string& name, const Layout& layout,
                                                   bool with_mtp = true) {
  auto weights = ModelWeights::Load(TestModelFolder(name), TestModelConfig(name), layout,
                                    TestLoadOptions(with_mtp));
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  return std::move(*weights);
}

}  // namespace tandem
