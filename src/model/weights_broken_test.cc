// Checkpoints that are not what the config says are refused by name; MTP copies that differ are
// kept apart.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "model/safetensors.h"
#include "model/test_folder.h"
#include "model/test_models.h"

namespace tandem {
namespace {

constexpr const char* kModel = "v3-odd-mtp";

struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::string data;
};
using Tensors = std::map<std::string, Tensor>;

Tensors ReadModel() {
  Tensors tensors;
  for (const char* shard :
       {"/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors"}) {
    auto file = SafetensorsFile::Open(TestModelFolder(kModel) + shard);
    EXPECT_TRUE(file.ok());
    for (const TensorInfo& info : file->TakeTensors()) {
      std::string bytes(info.bytes, '\0');
      EXPECT_TRUE(file->Read(info, 0, std::as_writable_bytes(std::span(bytes))).ok());
      tensors[info.name] = {info.dtype, info.shape, bytes};
    }
  }
  return tensors;
}

void WriteModel(const TestFolder& folder, const Tensors& tensors) {
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
  folder.Write("model.safetensors", bytes + header + data);
}

Result<std::unique_ptr<ModelWeights>> LoadFrom(const TestFolder& folder, bool with_mtp = true) {
  return ModelWeights::Load(folder.path(), TestModelConfig(kModel), *Layout::Make(4, 2),
                            TestLoadOptions(with_mtp));
}

// The message of the refusal of `tensors`.
std::string Refusal(const Tensors& tensors, bool with_mtp = true) {
  const TestFolder folder;
  WriteModel(folder, tensors);
  const auto weights = LoadFrom(folder, with_mtp);
  if (weights.ok()) return "accepted";
  EXPECT_EQ(weights.status().code(), StatusCode::kInvalidArgument);
  return weights.status().message();
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(BrokenWeights, TheModelInOneFileIsAccepted) {
  EXPECT_EQ(Refusal(ReadModel()), "accepted");
  EXPECT_EQ(Refusal(ReadModel(), /*with_mtp=*/false), "accepted");
}

TEST(BrokenWeights, EveryTensorIsNeeded) {
  const Tensors whole = ReadModel();
  for (const auto& entry : whole) {
    Tensors tensors = whole;
    tensors.erase(entry.first);
    const std::string message = Refusal(tensors);
    const bool copy = entry.first == "model.layers.3.embed_tokens.weight" ||
                      entry.first == "model.layers.3.shared_head.head.weight";
    // Without copies of embedding and head the module has the target's.
    const std::string expected = copy ? "accepted" : "1 missing: " + entry.first;
    EXPECT_TRUE(Contains(message, expected)) << message;
  }
}

TEST(BrokenWeights, WithoutMtpOnlyItsTensorsMayBeMissing) {
  Tensors tensors = ReadModel();
  std::erase_if(tensors,
                [](const auto& entry) { return entry.first.starts_with("model.layers.3."); });
  EXPECT_EQ(Refusal(tensors, /*with_mtp=*/false), "accepted");
  tensors.erase("model.layers.2.mlp.experts.11.up_proj.weight");
  EXPECT_TRUE(Contains(Refusal(tensors, /*with_mtp=*/false),
                       "1 missing: model.layers.2.mlp.experts.11.up_proj.weight"));
}

TEST(BrokenWeights, LeftOverTensorsAreNamed) {
  for (const char* name :
       {"model.layers.0.mlp.experts.0.up_proj.weight",  // of a dense layer
        "model.layers.2.mlp.experts.12.up_proj.weight", "model.layers.4.input_layernorm.weight",
        "model.layers.1.self_attn.q_a_proj.weight_scale_inv"}) {
    Tensors tensors = ReadModel();
    tensors[name] = tensors["model.norm.weight"];
    const std::string message = Refusal(tensors);
    EXPECT_TRUE(Contains(message, std::string("1 left over: \"") + name + "\"")) << message;
  }
}

TEST(BrokenWeights, WrongShapesAreNamed) {
  for (const char* name :
       {"lm_head.weight", "model.layers.0.mlp.down_proj.weight", "model.layers.3.eh_proj.weight",
        "model.layers.2.mlp.gate.weight", "model.layers.1.self_attn.kv_b_proj.weight",
        "model.layers.2.mlp.experts.7.down_proj.weight"}) {
    Tensors tensors = ReadModel();
    std::swap(tensors[name].shape[0], tensors[name].shape[1]);
    const std::string message = Refusal(tensors);
    EXPECT_TRUE(Contains(message, std::string("1 of the wrong shape: ") + name)) << message;
  }
}

TEST(BrokenWeights, OtherFormatsAreNamed) {
  Tensors tensors = ReadModel();
  tensors["lm_head.weight"].dtype = DType::kF16;
  EXPECT_TRUE(Contains(Refusal(tensors), "lm_head.weight F16"));
}

TEST(BrokenWeights, MtpCopiesThatDifferAreKeptApart) {
  const auto same = LoadTestModel(kModel, *Layout::Make(4, 2));
  EXPECT_EQ(&same->mtp_embedding(), &same->embedding());
  EXPECT_EQ(&same->mtp_head(3), &same->head(3));

  Tensors tensors = ReadModel();
  tensors["model.layers.3.embed_tokens.weight"].data[5] ^= 1;
  tensors["model.layers.3.shared_head.head.weight"].data.back() ^= 1;
  const TestFolder folder;
  WriteModel(folder, tensors);
  const auto differ = std::move(*LoadFrom(folder));
  EXPECT_NE(&differ->mtp_embedding(), &differ->embedding());
  EXPECT_NE(&differ->mtp_head(3), &differ->head(3));
  const ModelConfig& c = differ->config();
  std::vector<float> a(c.hidden_size), b(c.hidden_size);
  differ->embedding().Read(0, a.data());
  differ->mtp_embedding().Read(0, b.data());
  EXPECT_NE(a[2], b[2]);
  a[2] = b[2];
  EXPECT_EQ(a, b);
  EXPECT_EQ(differ->SharedBytes() - same->SharedBytes(), 2 * c.vocab_size * c.hidden_size);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(differ->RankBytes(rank) - same->RankBytes(rank),
              static_cast<int64_t>(differ->head(rank).bytes()));
  }
}

}  // namespace
}  // namespace tandem
