// A small model's tensors as plain values, to be damaged and written to a folder. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "model/test_folder.h"
#include "model/test_models.h"

namespace tandem {

struct TestTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::string data;
};
using TestTensors = std::map<std::string, TestTensor>;

inline TestTensors ReadModelTensors(const std::string& model) {
  TestTensors tensors;
  for (const auto& entry : std::filesystem::directory_iterator(TestModelFolder(model))) {
    if (entry.path().extension() != ".safetensors") continue;
    auto file = SafetensorsFile::Open(entry.path());
    EXPECT_TRUE(file.ok());
    for (const TensorInfo& info : file->TakeTensors()) {
      std::string bytes(info.bytes, '\0');
      EXPECT_TRUE(file->Read(info, 0, std::as_writable_bytes(std::span(bytes))).ok());
      tensors[info.name] = {info.dtype, info.shape, bytes};
    }
  }
  return tensors;
}

inline void WriteTensors(const TestFolder& folder, const TestTensors& tensors,
                         const std::string& file = "model.safetensors") {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + name + "\":{\"dtype\":\"" + DTypeName(tensor.dtype) +
              "\",\"shape\":" + ShapeName(tensor.shape) + ",\"data_offsets\":[" +
              std::to_string(data.size()) + ",";
    data += tensor.data;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  folder.Write(file, bytes + header + data);
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void ExpectSame(const PackedMatrix& a, const PackedMatrix& b) {
  ASSERT_EQ(a.columns(), b.columns());
  ASSERT_EQ(a.depth(), b.depth());
  ASSERT_EQ(a.type(), b.type());
  ASSERT_EQ(a.bytes(), b.bytes());
  const size_t size = static_cast<size_t>(a.num_panels() * kPanel * a.depth()) * BytesOf(a.type());
  const bool same_weights = size == 0 || std::memcmp(a.Panel<char>(0), b.Panel<char>(0), size) == 0;
  ASSERT_TRUE(same_weights);
  const bool same_scales =
      a.bytes() == size || std::memcmp(a.Scales(0), b.Scales(0), a.bytes() - size) == 0;
  ASSERT_TRUE(same_scales);
}

inline void ExpectSame(const Buffer<float>& a, const Buffer<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(a.size() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

// One layer's weights on all ranks, bit for bit. REQUIRES: equal layouts.
inline void ExpectSameLayer(const ModelWeights& a, int64_t layer_a, const ModelWeights& b,
                            int64_t layer_b) {
  const LayerCommon &common_a = a.common(layer_a), &common_b = b.common(layer_b);
  ExpectSame(common_a.input_norm, common_b.input_norm);
  ExpectSame(common_a.post_attention_norm, common_b.post_attention_norm);
  ExpectSame(common_a.q_a, common_b.q_a);
  ExpectSame(common_a.q_a_norm, common_b.q_a_norm);
  ExpectSame(common_a.kv_a, common_b.kv_a);
  ExpectSame(common_a.kv_a_norm, common_b.kv_a_norm);
  ExpectSame(common_a.router, common_b.router);
  ExpectSame(common_a.router_bias, common_b.router_bias);
  for (int rank = 0; rank < a.layout().tp_size(); ++rank) {
    const AttentionShard &at_a = a.attention(layer_a, rank), &at_b = b.attention(layer_b, rank);
    ExpectSame(at_a.query, at_b.query);
    ExpectSame(at_a.output, at_b.output);
    for (size_t h = 0; h < at_a.key_up.size(); ++h) {
      ExpectSame(at_a.key_up[h], at_b.key_up[h]);
      ExpectSame(at_a.value_up[h], at_b.value_up[h]);
    }
    const FfnShard &ffn_a = a.ffn(layer_a, rank), &ffn_b = b.ffn(layer_b, rank);
    ExpectSame(ffn_a.mlp.gate, ffn_b.mlp.gate);
    ExpectSame(ffn_a.mlp.up, ffn_b.mlp.up);
    ExpectSame(ffn_a.mlp.down, ffn_b.mlp.down);
    ASSERT_EQ(ffn_a.experts.size(), ffn_b.experts.size());
    for (size_t e = 0; e < ffn_a.experts.size(); ++e) {
      ExpectSame(ffn_a.experts[e].gate, ffn_b.experts[e].gate);
      ExpectSame(ffn_a.experts[e].up, ffn_b.experts[e].up);
      ExpectSame(ffn_a.experts[e].down, ffn_b.experts[e].down);
    }
  }
}

}  // namespace tandem
