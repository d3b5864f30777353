#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "text/test_util.h"

namespace tandem {
namespace {

using Ids = std::vector<int32_t>;

constexpr char kBos[] = "<｜begin▁of▁sentence｜>";

std::unique_ptr<Tokenizer> LoadTiny() {
  auto tokenizer = Tokenizer::Load(TinyModel());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// The bundled tokenizer with another tokenizer_config.json.
std::unique_ptr<Tokenizer> LoadWithConfig(const std::string& config) {
  const TemporaryFolder folder{{"tokenizer.json", ReadJson(TinyModel() + "/tokenizer.json").dump()},
                               {"tokenizer_config.json", config}};
  auto tokenizer = Tokenizer::Load(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

std::string LoadError(std::initializer_list<std::pair<std::string, std::string>> files) {
  const TemporaryFolder folder(files);
  return Tokenizer::Load(folder.path()).status().message();
}

TEST(Tokenizer, GoldenVectors) {
  const auto tokenizer = LoadTiny();
  const auto vectors = ReadJson(TANDEM_SOURCE_DIR "/golden/tokenizer.json");
  ASSERT_EQ(vectors.size(), 24u);
  for (const auto& vector : vectors) {
    const std::string text = vector["text"];
    const Ids ids = vector["ids"];
    auto encoded = tokenizer->Encode(text, false);
    ASSERT_TRUE(encoded.ok()) << encoded.status().message();
    EXPECT_EQ(*encoded, ids) << text;
    EXPECT_EQ(tokenizer->Decode(ids, false), vector["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->Decode(ids, true), vector["decoded_no_special"].get<std::string>());
  }
}

TEST(Tokenizer, NamesAndIds) {
  const auto tokenizer = LoadTiny();
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->IdOf("<think>"), 3061);
  EXPECT_EQ(tokenizer->TokenOf(3061), "<think>");
  EXPECT_EQ(tokenizer->IdOf("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenOf(-1), std::nullopt);
  EXPECT_EQ(tokenizer->TokenOf(tokenizer->id_count()), std::nullopt);
  EXPECT_NE(tokenizer->TokenOf(tokenizer->id_count() - 1), std::nullopt);
}

TEST(Tokenizer, BosIsAddedOnceOrNotAtAll) {
  const auto tokenizer = LoadTiny();
  EXPECT_EQ(*tokenizer->Encode("Hello!", true), (Ids{0, 42, 433, 81, 3}));
  EXPECT_EQ(*tokenizer->Encode("Hello!", false), (Ids{42, 433, 81, 3}));
  EXPECT_EQ(*tokenizer->Encode(std::string(kBos) + "Hello!", true), (Ids{0, 42, 433, 81, 3}));
  EXPECT_EQ(*tokenizer->Encode("", true), (Ids{0}));
}

TEST(Tokenizer, ConfigKeysDecideAboutBosAndEos) {
  const std::string names = R"("bos_token": "<｜begin▁of▁sentence｜>",
                               "eos_token": {"content": "<｜end▁of▁sentence｜>"})";
  const auto off = LoadWithConfig(R"({"add_bos_token": false, )" + names + "}");
  EXPECT_EQ(*off->Encode("Hello!", true), (Ids{42, 433, 81, 3}));
  const auto both =
      LoadWithConfig(R"({"add_bos_token": true, "add_eos_token": true, )" + names + "}");
  EXPECT_EQ(*both->Encode("Hello!", true), (Ids{0, 42, 433, 81, 3, 1}));
  const auto none = LoadWithConfig("{" + names + "}");
  EXPECT_EQ(*none->Encode("Hello!", true), (Ids{42, 433, 81, 3}));
  EXPECT_EQ(none->eos_id(), 1);
}

TEST(Tokenizer, PostProcessorRunsWithoutConfigKeysAndAddsBosOnce) {
  auto json = ReadJson(TinyModel() + "/tokenizer.json");
  json["post_processor"] = nlohmann::ordered_json::parse(R"({
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"B": {"id": "B", "ids": [0], "tokens": ["<｜begin▁of▁sentence｜>"]}}})");
  const std::string bos = R"({"bos_token": "<｜begin▁of▁sentence｜>"})";
  const TemporaryFolder folder{{"tokenizer.json", json.dump()}, {"tokenizer_config.json", bos}};
  auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(*(*tokenizer)->Encode("Hello!", true), (Ids{0, 42, 433, 81, 3}));
  EXPECT_EQ(*(*tokenizer)->Encode(std::string(kBos) + "Hello!", true), (Ids{0, 42, 433, 81, 3}));
  EXPECT_EQ(*(*tokenizer)->Encode("Hello!", false), (Ids{42, 433, 81, 3}));
}

TEST(Tokenizer, TextThatIsNotUtf8IsAnError) {
  const auto tokenizer = LoadTiny();
  const auto ids = tokenizer->Encode("ab\xff", true);
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("UTF-8 at byte 2"), std::string::npos);
  EXPECT_TRUE(tokenizer->Encode(std::string("a\0b", 3), true).ok());
}

TEST(Tokenizer, IdsThatAreNoTokensAreLeftOut) {
  const auto tokenizer = LoadTiny();
  const Ids ids = {
      -1, 42, 1 << 30, 433, tokenizer->id_count(), 81, 3, std::numeric_limits<int32_t>::min()};
  EXPECT_EQ(tokenizer->Decode(ids, false), "Hello!");
  EXPECT_EQ(tokenizer->Decode({}, false), "");
}

TEST(Tokenizer, LongRunsAreSplitLikeShortOnes) {
  // The patterns look ahead over white space; a regex engine with a small backtracking budget would
  // end the splitting in the middle without an error.
  const auto tokenizer = LoadTiny();
  for (const std::string& text : {std::string(100'000, 'a'), std::string(100'000, '\n'),
                                  std::string(100'000, '!') + "\n x"}) {
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer->Decode(*ids, false), text);
  }
  // Beyond a million steps, the engine's limit for one match.
  const auto spaces = *tokenizer->Encode(std::string(1'100'000, ' ') + "x 123", false);
  const auto few = *tokenizer->Encode("  x 123", false);
  ASSERT_GE(few.size(), 4u);
  EXPECT_EQ(Ids(spaces.end() - 4, spaces.end()), Ids(few.end() - 4, few.end()));
}

TEST(Tokenizer, IsThreadSafe) {
  const auto tokenizer = LoadTiny();
  const Ids expected = *tokenizer->Encode("In a library far away lived a curious eagle.", true);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto ids = tokenizer->Encode("In a library far away lived a curious eagle.", true);
        wrong[t] += *ids != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Tokenizer, BrokenFilesAreErrorsThatNameFileAndField) {
  using testing::IsSubstring;
  EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer.json: cannot be opened", LoadError({}));
  EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer.json: not JSON",
                      LoadError({{"tokenizer.json", "{"}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer.json: field \"model\"",
                      LoadError({{"tokenizer.json", R"({"version": "1.0"})"}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer.json: ",
                      LoadError({{"tokenizer.json", R"({"version": "1.0", "model": {}})"}}));

  const std::string good = ReadJson(TinyModel() + "/tokenizer.json").dump();
  EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer.json: not JSON",
                      LoadError({{"tokenizer.json", good.substr(0, good.size() / 2)}}));
  const auto config_error = [&](const std::string& config) {
    return LoadError({{"tokenizer.json", good}, {"tokenizer_config.json", config}});
  };
  EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer_config.json: not JSON", config_error("no"));
  EXPECT_PRED_FORMAT2(IsSubstring, "field \"add_bos_token\" is not true or false",
                      config_error(R"({"add_bos_token": 1})"));
  EXPECT_PRED_FORMAT2(IsSubstring, "field \"eos_token\"", config_error(R"({"eos_token": [1]})"));
  EXPECT_PRED_FORMAT2(IsSubstring, "\"add_bos_token\" is true but \"bos_token\"",
                      config_error(R"({"add_bos_token": true, "bos_token": "<s>"})"));
}

TEST(Tokenizer, DamagedFilesNeverCrash) {
  // Any byte replaced: an error or a tokenizer, nothing else.
  const std::string good = R"({"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>",
    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|a"}, "behavior": "Isolated",
    "invert": false}, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
    "use_regex": true}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 3},
    "merges": [["a", "b"]]}})";
  int loaded = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char byte : {'}', '"'}) {
      std::string bad = good;
      bad[i] = byte;
      const TemporaryFolder folder{{"tokenizer.json", bad}};
      const auto tokenizer = Tokenizer::Load(folder.path());
      if (!tokenizer.ok()) continue;
      ++loaded;
      const auto ids = (*tokenizer)->Encode("ab <s> a", true);
      if (ids.ok()) (*tokenizer)->Decode(*ids, true);
    }
  }
  EXPECT_GT(loaded, 0);
}

TEST(TokenizerTest, OfBytesKeepsEveryByte) {
  const auto tokenizer = Tokenizer::OfBytes();
  EXPECT_EQ(tokenizer->id_count(), 256);
  const std::string text = "A\n \x7f \xc3\xa9 \xf0\x9f\x98\x80";
  const auto ids = tokenizer->Encode(text, true);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ((*ids)[i], static_cast<unsigned char>(text[i]));
  }
  EXPECT_EQ(tokenizer->Decode(*ids, true), text);
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{72, 300, 105}, true), "Hi");
  for (int32_t id = 0; id < 256; ++id) {
    std::string bytes;
    EXPECT_EQ(tokenizer->PieceOf(id, true, &bytes), Tokenizer::Piece::kBytes);
    EXPECT_EQ(bytes, std::string(1, static_cast<char>(id)));
  }
}

}  // namespace
}  // namespace tandem
