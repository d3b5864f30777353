#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include "base/numeric.h"
#include "model/test_folder.h"

namespace tandem {
namespace {

// A header of 1-byte-per-element tensors would not be usable: each tensor here is BF16 [2], 4
// bytes.
std::string Header(const std::vector<std::string>& names, const std::string& dtype = "BF16") {
  std::string header;
  for (size_t i = 0; i < names.size(); ++i) {
    header += std::string(i ? "," : "{") + "\"" + names[i] + "\":{\"dtype\":\"" + dtype +
              "\",\"shape\":[2],\"data_offsets\":[" + std::to_string(4 * i) + "," +
              std::to_string(4 * i + 4) + "]}";
  }
  return header + "}";
}

void WriteShard(const TestFolder& folder, const std::string& file,
                const std::vector<std::string>& names, const std::string& dtype = "BF16") {
  folder.WriteTensors(file, Header(names, dtype), 4 * names.size());
}

void WriteIndex(const TestFolder& folder, const std::string& weight_map) {
  folder.Write("model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}");
}

::testing::AssertionResult Says(const Status& status, const std::string& text) {
  if (status.message().find(text) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "not \"" << text << "\" in: " << status.message();
}

TEST(Checkpoint, TakesFromOneFile) {
  const TestFolder folder;
  WriteShard(folder, "model.safetensors",
             {"a", "b", "model.layers.0.self_attn.rotary_emb.inv_freq"});
  const auto checkpoint = std::move(*Checkpoint::Open(folder.path()));
  EXPECT_TRUE(checkpoint->Has("b"));
  EXPECT_FALSE(checkpoint->Has("c"));
  ASSERT_NE(checkpoint->Take("a", {2}), nullptr);
  EXPECT_EQ(checkpoint->Take("a", {2})->name, "a");
  EXPECT_TRUE(Says(checkpoint->Finish(), "1 left over: \"b\""));
  EXPECT_NE(checkpoint->Take("b", {2}), nullptr);
  EXPECT_TRUE(checkpoint->Finish().ok());
}

TEST(Checkpoint, FinishListsEverythingThatIsWrong) {
  const TestFolder folder;
  WriteShard(folder, "one", {"good", "matrix"});
  WriteShard(folder, "two", {"half"}, "F16");
  folder.WriteTensors("three", Header({"extra", "skipped.0", "skipped.1"}), 12);
  WriteIndex(folder, R"({"good":"one","matrix":"one","half":"two","extra":"three",
                         "skipped.0":"three","skipped.1":"three"})");
  // F16 [2] is 4 bytes too, so the shard itself is sound.
  const auto checkpoint = std::move(*Checkpoint::Open(folder.path()));
  EXPECT_NE(checkpoint->Take("good", {2}), nullptr);
  EXPECT_EQ(checkpoint->Take("matrix", {2, 3}), nullptr);
  EXPECT_EQ(checkpoint->Take("half", {2}), nullptr);
  EXPECT_EQ(checkpoint->Take("none", {4}), nullptr);
  checkpoint->SkipPrefix("skipped.");
  const Status status = checkpoint->Finish();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(status, "1 missing: none [4];"));
  EXPECT_TRUE(Says(status, "1 of the wrong shape: matrix [2] instead of [2, 3];"));
  EXPECT_TRUE(Says(status, "1 of a format that cannot be used there: half F16;"));
  EXPECT_TRUE(Says(status, "1 left over: \"extra\""));
  EXPECT_EQ(status.message().find("skipped"), std::string::npos);
}

TEST(Checkpoint, LongListsAreCut) {
  const TestFolder folder;
  std::vector<std::string> names;
  for (int i = 100; i < 150; ++i) names.push_back(std::to_string(i));
  WriteShard(folder, "model.safetensors", names);
  const Status status = (*Checkpoint::Open(folder.path()))->Finish();
  EXPECT_TRUE(Says(status, "50 left over: \"100\", "));
  EXPECT_TRUE(Says(status, "\"119\", and 30 more"));
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  const TestFolder folder;
  WriteShard(folder, "one", {"a", "b"});
  WriteShard(folder, "two", {"c"});
  const struct {
    const char* weight_map;
    const char* error;  // nullptr: opens
  } kCases[] = {
      {R"({"a":"one","b":"one","c":"two"})", nullptr},
      {R"({"a":"one","b":"one","c":"two","d":"two"})", "1 in the index only: \"d\" of two"},
      {R"({"a":"one","c":"two"})", "1 in a shard only: \"b\" of one"},
      {R"({"a":"one","b":"two","c":"two"})", "in the index only: \"b\" of two"},
      {R"({"a":"one","b":"one","c":"three"})", "/three: No such file"},
      {R"({"a":"one","b":"one","c":"../two"})", "the shard of \"c\" is not a file name"},
      {R"({"a":"one","b":"one","c":"/two"})", "the shard of \"c\" is not a file name"},
      {R"({"a":"one","b":"one","c":".."})", "the shard of \"c\" is not a file name"},
      {R"({"a":"one","b":"one","c":"two\u0000"})", "the shard of \"c\" is not a file name"},
      {R"({"a":"one","b":"one","c":2})", "the shard of \"c\" is not a file name"},
      {R"({})", "weight_map is empty"},
      {R"([])", "weight_map is not an object"},
      {R"({)", "not valid JSON"},
  };
  for (const auto& test : kCases) {
    WriteIndex(folder, test.weight_map);
    const Status status = Checkpoint::Open(folder.path()).status();
    EXPECT_EQ(status.ok(), test.error == nullptr) << test.weight_map << status.message();
    EXPECT_TRUE(Says(status, test.error ? test.error : "")) << test.weight_map;
  }
}

TEST(Checkpoint, SameTensorInTwoShards) {
  const TestFolder folder;
  WriteShard(folder, "one", {"a"});
  WriteShard(folder, "two", {"a", "b"});
  WriteIndex(folder, R"({"a":"one","b":"two"})");
  EXPECT_TRUE(Says(Checkpoint::Open(folder.path()).status(), "in a shard only: \"a\" of two"));
}

TEST(Checkpoint, EmptyFolder) {
  const TestFolder folder;
  EXPECT_EQ(Checkpoint::Open(folder.path()).status().code(), StatusCode::kNotFound);
}

TEST(Checkpoint, TandemTiny) {
  auto opened = Checkpoint::Open(std::string(TANDEM_SOURCE_DIR) + "/models/tandem-tiny");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto checkpoint = std::move(*opened);
  const TensorInfo* embedding = checkpoint->Take("model.embed_tokens.weight", {3072, 256});
  ASSERT_NE(embedding, nullptr);
  std::vector<BFloat16> row(256);
  ASSERT_TRUE(
      checkpoint->Read(*embedding, 3071 * 512, std::as_writable_bytes(std::span(row))).ok());
  for (const BFloat16 value : row) EXPECT_LT(std::abs(value.ToFloat()), 100.0f);
  checkpoint->SkipPrefix("model.layers.4.");
  EXPECT_TRUE(Says(checkpoint->Finish(), "left over: \"lm_head.weight\""));
  checkpoint->SkipPrefix("");
  EXPECT_TRUE(checkpoint->Finish().ok());
}

}  // namespace
}  // namespace tandem
