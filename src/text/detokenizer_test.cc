#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_util.h"

namespace tandem {
namespace {

using Ids = std::vector<int32_t>;

// Nothing is replaced or held back: the text is UTF-8 as it is.
bool IsUtf8(const std::string& text) {
  Utf8Stream stream;
  std::string out;
  stream.Push(text, &out);
  stream.Finish(&out);
  return out == text;
}

std::string PushAll(Detokenizer* detokenizer, const Ids& ids) {
  std::string all;
  for (const int32_t id : ids) {
    const std::string part = detokenizer->Push(id);
    EXPECT_TRUE(IsUtf8(part));
    all += part;
  }
  const std::string rest = detokenizer->Finish();
  EXPECT_TRUE(IsUtf8(rest));
  return all + rest;
}

void ExpectEqualsDecode(const Tokenizer& tokenizer, const Ids& ids) {
  for (const bool skip : {false, true}) {
    Detokenizer detokenizer(&tokenizer, skip);
    ASSERT_EQ(PushAll(&detokenizer, ids), tokenizer.Decode(ids, skip));
  }
}

std::unique_ptr<Tokenizer> Load(const std::string& folder) {
  auto tokenizer = Tokenizer::Load(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// A vocabulary of the SentencePiece kind: ids 0..255 are the bytes, then words.
std::unique_ptr<Tokenizer> LoadByteFallback(const std::string& decoder) {
  nlohmann::ordered_json json = {{"version", "1.0"}, {"decoder", nlohmann::json::parse(decoder)}};
  auto& model = json["model"] = {
      {"type", "BPE"}, {"byte_fallback", true}, {"merges", nlohmann::json::array()}};
  for (int byte = 0; byte < 256; ++byte) {
    char token[8];
    snprintf(token, sizeof token, "<0x%02X>", byte);
    model["vocab"][token] = byte;
  }
  int32_t next = 256;
  for (const char* word : {"▁", "▁the", "a", "▁▁", "é", "\xef\xbf\xbd", ".", "▁x▁"}) {
    model["vocab"][word] = next++;
  }
  const TemporaryFolder folder{{"tokenizer.json", json.dump()}};
  return Load(folder.path());
}

constexpr char kLlamaDecoder[] = R"({"type": "Sequence", "decoders": [
  {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
  {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

TEST(Detokenizer, GoldenVectors) {
  const auto tokenizer = Load(TinyModel());
  for (const auto& vector : ReadJson(TANDEM_SOURCE_DIR "/golden/tokenizer.json")) {
    ExpectEqualsDecode(*tokenizer, vector["ids"].get<Ids>());
  }
}

TEST(Detokenizer, RandomIdsGiveTheTextOfDecode) {
  const auto tokenizer = Load(TinyModel());
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    Ids ids(random() % 40);
    // Odd rounds: mostly single bytes, where broken characters are.
    const int32_t limit = round % 2 ? 260 : tokenizer->id_count() + 3;
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % limit) - (round % 2 ? 0 : 2);
    ExpectEqualsDecode(*tokenizer, ids);
  }
}

TEST(Detokenizer, EveryPushSendsAllWholeCharacters) {
  const auto tokenizer = Load(TinyModel());
  const Ids ids = *tokenizer->Encode("Grüße 🦊 毕", false);
  Detokenizer detokenizer(tokenizer.get(), false);
  std::string sent;
  for (size_t i = 0; i < ids.size(); ++i) {
    sent += detokenizer.Push(ids[i]);
    std::string whole = tokenizer->Decode(std::span(ids).first(i + 1), false);
    if (whole.ends_with("\xef\xbf\xbd")) whole.resize(whole.size() - 3);
    EXPECT_EQ(sent, whole);
  }
}

TEST(Detokenizer, InvalidBytesAndRealReplacementCharactersAreNotHeld) {
  const auto tokenizer = Load(TinyModel());
  // U+FFFD as text: sent with its last byte.
  const Ids real = *tokenizer->Encode("\xef\xbf\xbd", false);
  Detokenizer detokenizer(tokenizer.get(), false);
  std::string sent;
  for (const int32_t id : real) sent += detokenizer.Push(id);
  EXPECT_EQ(sent, "\xef\xbf\xbd");
  // The last byte of a character alone: never part of a character.
  const Ids fox = *tokenizer->Encode("🦊", false);
  ASSERT_EQ(fox.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(detokenizer.Push(fox.back()), "\xef\xbf\xbd");
}

TEST(Detokenizer, CopiesGoOnByThemselves) {
  const auto tokenizer = Load(TinyModel());
  const Ids fox = *tokenizer->Encode("🦊", false);
  Detokenizer first(tokenizer.get(), false);
  first.Push(fox[0]);
  Detokenizer second = first;
  EXPECT_EQ(first.Finish(), "\xef\xbf\xbd");
  EXPECT_EQ(PushAll(&second, Ids(fox.begin() + 1, fox.end())), "🦊");
}

TEST(Detokenizer, ContextIsNotSentAndCompletesWhatItBegan) {
  const auto tokenizer = Load(TinyModel());
  const Ids ids = *tokenizer->Encode("Hello 🦊", false);
  const auto split = static_cast<size_t>(ids.size() - 2);  // inside the fox
  Detokenizer detokenizer(tokenizer.get(), false, std::span(ids).first(split));
  EXPECT_EQ(PushAll(&detokenizer, Ids(ids.begin() + split, ids.end())), "🦊");
}

TEST(Detokenizer, ContextKeepsLeadingSpaces) {
  const auto tokenizer = LoadByteFallback(kLlamaDecoder);
  const Ids the = {257};
  Detokenizer fresh(tokenizer.get(), false);
  EXPECT_EQ(PushAll(&fresh, the), "the");
  Detokenizer after(tokenizer.get(), false, Ids{258});
  EXPECT_EQ(PushAll(&after, the), " the");
}

TEST(Detokenizer, OtherDecodersGiveTheTextOfDecodeToo) {
  std::mt19937 random(2);
  for (const std::string& decoder :
       {std::string(kLlamaDecoder), std::string(R"({"type": "ByteFallback"})"),
        std::string(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})"),
        std::string(R"({"type": "WordPiece", "prefix": "##", "cleanup": false})"),
        std::string(R"({"type": "BPEDecoder", "suffix": "</w>"})"), std::string("null")}) {
    const auto tokenizer = LoadByteFallback(decoder);
    for (int round = 0; round < 1500; ++round) {
      Ids ids(random() % 12);
      for (int32_t& id : ids) {
        const int32_t bytes[] = {0x41, 0x20, 0xe2, 0x82, 0xac, 0xc3, 0xbc, 0xff};
        id = random() % 2 ? bytes[random() % 8] : 256 + static_cast<int32_t>(random() % 9);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsDecode(*tokenizer, ids)) << decoder;
    }
  }
}

TEST(Detokenizer, InvalidFallbackRunsAreNotHeld) {
  const auto tokenizer = LoadByteFallback(kLlamaDecoder);
  Detokenizer detokenizer(tokenizer.get(), false);
  EXPECT_EQ(detokenizer.Push(0x41), "");
  EXPECT_EQ(detokenizer.Push(0xff), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(detokenizer.Push(0x41), "\xef\xbf\xbd");
  EXPECT_EQ(detokenizer.Push(258), "a");
}

}  // namespace
}  // namespace tandem
