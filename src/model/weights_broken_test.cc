// Checkpoints that are not what the config says are refused by name; MTP copies that differ are
// kept apart.
#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/test_models.h"
#include "model/test_tensors.h"

namespace tandem {
namespace {

constexpr const char* kModel = "v3-odd-mtp";

Result<std::unique_ptr<ModelWeights>> LoadFrom(const TestFolder& folder, bool with_mtp = true) {
  return ModelWeights::Load(folder.path(), TestModelConfig(kModel), *Layout::Make(4, 2),
                            TestLoadOptions(with_mtp));
}

// The message of the refusal of `tensors`.
std::string Refusal(const TestTensors& tensors, bool with_mtp = true) {
  const TestFolder folder;
  WriteTensors(folder, tensors);
  const auto weights = LoadFrom(folder, with_mtp);
  if (weights.ok()) return "accepted";
  EXPECT_EQ(weights.status().code(), StatusCode::kInvalidArgument);
  return weights.status().message();
}

TEST(BrokenWeights, TheModelInOneFileIsAccepted) {
  EXPECT_EQ(Refusal(ReadModelTensors(kModel)), "accepted");
  EXPECT_EQ(Refusal(ReadModelTensors(kModel), /*with_mtp=*/false), "accepted");
}

TEST(BrokenWeights, EveryTensorIsNeeded) {
  const TestTensors whole = ReadModelTensors(kModel);
  for (const auto& entry : whole) {
    TestTensors tensors = whole;
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
  TestTensors tensors = ReadModelTensors(kModel);
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
    TestTensors tensors = ReadModelTensors(kModel);
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
    TestTensors tensors = ReadModelTensors(kModel);
    std::swap(tensors[name].shape[0], tensors[name].shape[1]);
    const std::string message = Refusal(tensors);
    EXPECT_TRUE(Contains(message, std::string("1 of the wrong shape: ") + name)) << message;
  }
}

TEST(BrokenWeights, OtherFormatsAreNamed) {
  TestTensors tensors = ReadModelTensors(kModel);
  tensors["lm_head.weight"].dtype = DType::kF16;
  EXPECT_TRUE(Contains(Refusal(tensors), "lm_head.weight F16"));
}

// A file that loses its end after it was opened, anywhere in its data.
TEST(BrokenWeights, AFileThatShrinksWhileItIsRead) {
  const TestFolder folder;
  WriteTensors(folder, ReadModelTensors(kModel));
  const std::string path = folder.path() + "/model.safetensors";
  for (size_t size = std::filesystem::file_size(path) - 1; size > 100; size = size * 3 / 4) {
    WriteTensors(folder, ReadModelTensors(kModel));
    const auto checkpoint = std::move(*Checkpoint::Open(folder.path()));
    std::filesystem::resize_file(path, size);
    const auto weights = ModelWeights::Load(*checkpoint, TestModelConfig(kModel),
                                            *Layout::Make(4, 2), TestLoadOptions(true));
    ASSERT_FALSE(weights.ok());
    EXPECT_TRUE(Contains(weights.status().message(), path + ": tensor \""));
    EXPECT_TRUE(Contains(weights.status().message(), "the file has shrunk"));
  }
}

TEST(BrokenWeights, MtpCopiesThatDifferAreKeptApart) {
  const auto same = LoadTestModel(kModel, *Layout::Make(4, 2));
  EXPECT_EQ(&same->mtp_embedding(), &same->embedding());
  EXPECT_EQ(&same->mtp_head(3), &same->head(3));

  TestTensors tensors = ReadModelTensors(kModel);
  tensors["model.layers.3.embed_tokens.weight"].data[5] ^= 1;
  tensors["model.layers.3.shared_head.head.weight"].data.back() ^= 1;
  const TestFolder folder;
  WriteTensors(folder, tensors);
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
