// Tokenizers and templates that were made to break their reader: each gives an error that names the
// file, in bounded time and memory.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/system_memory.h"
#include "text/chat_template.h"
#include "text/test_util.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

std::string TokenizerError(const std::string& json) {
  const TemporaryFolder folder{{"tokenizer.json", json}};
  const Status status = Tokenizer::Load(folder.path()).status();
  return status.ok() ? "loaded" : status.message();
}

// The bundled tokenizer with one field changed.
Json Changed(const std::string& pointer, const Json& value) {
  Json json = ReadJson(TinyModel() + "/tokenizer.json");
  json[Json::json_pointer(pointer)] = value;
  return json;
}

Json SplitBy(const std::string& regex) {
  return Changed("/pre_tokenizer", {{"type", "Split"},
                                    {"pattern", {{"Regex", regex}}},
                                    {"behavior", "Isolated"},
                                    {"invert", false}});
}

TEST(HostileFiles, TokenizersThatDoNotParse) {
  std::string cut = ReadJson(TinyModel() + "/tokenizer.json").dump();
  cut.resize(cut.size() / 2);
  const std::string kBroken[] = {"",
                                 "{",
                                 "[]",
                                 "null",
                                 cut,
                                 "\xff\xfe",
                                 std::string(100'000, '['),
                                 "{\"model\": {}}",
                                 "{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": {}}}"};
  for (const std::string& text : kBroken) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, "/tokenizer.json: ", TokenizerError(text))
        << text.substr(0, 50);
  }
}

TEST(HostileFiles, AddedTokenIds) {
  for (const char* id : {"-1", "2147483647", "4294967295", "4294967296", "1e9", "\"7\"", "null"}) {
    Json json = ReadJson(TinyModel() + "/tokenizer.json");
    Json token = json["added_tokens"][0];
    token["content"] = "<hostile>";
    token["id"] = Json::parse(id);
    json["added_tokens"].push_back(token);
    // The crate numbers added tokens itself where the file's number is not the next one.
    const TemporaryFolder folder{{"tokenizer.json", json.dump()}};
    const auto loaded = Tokenizer::Load(folder.path());
    if (loaded.ok()) {
      EXPECT_LT((*loaded)->id_count(), 4000) << id;
    } else {
      EXPECT_PRED_FORMAT2(testing::IsSubstring, "/tokenizer.json: ", loaded.status().message());
    }
  }
  Json json = Changed("/model/vocab/hostile", 2147483647);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "31 bits", TokenizerError(json.dump()));
  json = Changed("/model/vocab/hostile", -1);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "/tokenizer.json: ", TokenizerError(json.dump()));
}

TEST(HostileFiles, Regexes) {
  // Too large to compile, or no regex at all.
  for (const char* regex : {"(?:\\w{1000}){1000}", "(", "\\p{Nothing}", "(?<=a+", "a{2,1}"}) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring,
                        "/tokenizer.json: ", TokenizerError(SplitBy(regex).dump()))
        << regex;
  }
  // Exponential for a backtracking matcher, which gives up after a million steps; the tokenizers
  // crate takes that for "no more matches", so what is left of the text is one piece.
  const TemporaryFolder folder{{"tokenizer.json", SplitBy("(?:(a|aa|a)+)\\1(?=z)").dump()}};
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto ids = (*tokenizer)->Encode(std::string(200, 'a'), false);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*tokenizer)->Decode(*ids, false), std::string(200, 'a'));
}

TEST(HostileFiles, Gigantic) {
  const TemporaryFolder folder{{"tokenizer.json", ""}, {"tokenizer_config.json", ""}};
  // Sparse: no bytes on the disk, and none must be read.
  std::filesystem::resize_file(folder.path() + "/tokenizer.json", uint64_t{1} << 40);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "/tokenizer.json: has 1099511627776 bytes",
                      Tokenizer::Load(folder.path()).status().message());
  std::filesystem::resize_file(folder.path() + "/tokenizer.json", 0);
  std::filesystem::resize_file(folder.path() + "/tokenizer_config.json", uint64_t{1} << 40);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "/tokenizer_config.json: has 1099511627776 bytes",
                      Tokenizer::Load(folder.path()).status().message());
  const TemporaryFolder other{{"chat_template.jinja", ""}};
  std::filesystem::resize_file(other.path() + "/chat_template.jinja", uint64_t{1} << 40);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "/chat_template.jinja: has 1099511627776 bytes",
                      ChatTemplate::Load(other.path()).status().message());
}

TEST(HostileFiles, NoRegularFile) {
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "/dev/zero: is no regular file",
                      ChatTemplate::Load("/nowhere", "/dev/zero").status().message());
}

// `text` as often as fits: 16'000 bytes for a tag, 128'000 for a whole template.
std::string Repeated(const std::string& text, size_t size = 16'000) {
  std::string all;
  while (all.size() + text.size() < size) all += text;
  return all;
}

TEST(HostileFiles, TemplatesThatDoNotParse) {
  const std::string kBroken[] = {"{{ " + Repeated("("),
                                 "{{ " + Repeated("["),
                                 "{{ a" + Repeated("."),
                                 Repeated("{% if a %}", 128'000),
                                 Repeated("{{"),
                                 "{{ nothing_of_this | that }",
                                 "{% for %}",
                                 "{% raw %}"};
  for (const std::string& text : kBroken) {
    const TemporaryFolder folder{{"chat_template.jinja", text}};
    EXPECT_PRED_FORMAT2(testing::IsSubstring, "/chat_template.jinja: syntax error",
                        ChatTemplate::Load(folder.path()).status().message())
        << text.substr(0, 20);
  }
  // The quoted }} do not end the tag.
  const TemporaryFolder long_tag{
      {"chat_template.jinja", "\n{{ a" + Repeated("~'\\'}}'", 20'000) + " }}"}};
  EXPECT_PRED_FORMAT2(testing::IsSubstring,
                      "/chat_template.jinja: line 2: a tag of more than 16384",
                      ChatTemplate::Load(long_tag.path()).status().message());
  const TemporaryFolder long_one{
      {"tokenizer_config.json", Json{{"chat_template", std::string(200'000, 'a')}}.dump()}};
  EXPECT_PRED_FORMAT2(testing::IsSubstring,
                      "field \"chat_template\": a template of 200000 bytes; the limit is 131072",
                      ChatTemplate::Load(long_one.path()).status().message());
}

// Chains that a recursive compiler follows one by one: legal, and no end of its stack.
// Every way to grow: an error in bounded memory, and other templates of the process go on.
TEST(HostileFiles, TemplatesThatGrowWithoutEnd) {
  const std::string kStart = "{% set ns = namespace(x='0123456789') %}{% for i in range(60) %}";
  const std::string kGrowths[] = {"{% set ns.x = ns.x ~ ns.x %}", "{% set ns.x = ns.x + ns.x %}",
                                  "{% set ns.x = [ns.x, ns.x] | join %}",
                                  "{% set ns.x = ns.x | replace('0', '00000000') %}"};
  const TemporaryFolder good{{"chat_template.jinja", "{{ messages | length }} {{ 'a' ~ 'b' }}"}};
  const auto other = ChatTemplate::Load(good.path());
  ASSERT_TRUE(other.ok());
  for (const std::string& growth : kGrowths) {
    const TemporaryFolder folder{
        {"chat_template.jinja", kStart + growth + "{% endfor %}{{ ns.x | length }}"}};
    const auto loaded = ChatTemplate::Load(folder.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    // Once more often than memory may be lost.
    const int times = growth == kGrowths[0] ? 5 : 1;
    for (int again = 0; again < times; ++again) {
      const Status status = (*loaded)->Render("[]", "", "", true).status();
      EXPECT_PRED_FORMAT2(testing::IsSubstring, "MiB of memory", status.message()) << growth;
      const auto rendered = (*other)->Render("[]", "", "", true);
      ASSERT_TRUE(rendered.ok()) << rendered.status().message();
      EXPECT_EQ(*rendered, "0 ab");
    }
  }
  // minijinja bounds repetition itself.
  const TemporaryFolder repeats{
      {"chat_template.jinja", kStart + "{% set ns.x = ns.x * 9 %}{% endfor %}"}};
  EXPECT_PRED_FORMAT2(
      testing::IsSubstring, "too large",
      (*ChatTemplate::Load(repeats.path()))->Render("[]", "", "", true).status().message());
  // Seven renderings lost up to 256 MiB each.
  EXPECT_LT(ResidentMemory(), int64_t{2} << 30);
}

// Lists in lists, as deep as instructions go: dropping them recurses.
TEST(HostileFiles, ListsInLists) {
  const TemporaryFolder folder{
      {"chat_template.jinja",
       "{% set ns = namespace(l=[]) %}{% for a in range(5000) %}{% for b in range(5000) %}"
       "{% set ns.l = [ns.l] %}{% endfor %}{% endfor %}"}};
  const auto loaded = ChatTemplate::Load(folder.path());
  ASSERT_TRUE(loaded.ok());
  EXPECT_FALSE((*loaded)->Render("[]", "", "", true).ok());
}

// What a template needs for a long conversation is no growth without end.
TEST(HostileFiles, LongConversationsRender) {
  const TemporaryFolder folder{
      {"chat_template.jinja",
       "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}"
       "{% endfor %}{{ ns.t }}"}};
  const auto loaded = ChatTemplate::Load(folder.path());
  ASSERT_TRUE(loaded.ok());
  std::string messages = "[";
  for (int i = 0; i < 3000; ++i) {
    messages += std::string(i > 0 ? "," : "") + R"({"role":"user","content":")" +
                std::string(300, 'x') + R"("})";
  }
  const auto rendered = (*loaded)->Render(messages + "]", "", "", true);
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_EQ(rendered->size(), 3000u * 300);
}

TEST(HostileFiles, DeepTemplates) {
  const std::string kDeep[] = {"{{ " + Repeated("-") + "1 }}",
                               "{{ " + Repeated("not ") + "1 }}",
                               "{{ 1" + Repeated("+1") + " }}",
                               "{{ 2" + Repeated("**1") + " }}",
                               "{{ a" + Repeated("|string") + " }}",
                               "{{ a" + Repeated(".b") + " }}",
                               "{{ a" + Repeated("~b") + " }}",
                               "{{ a" + Repeated(" if a else a") + " }}",
                               "{{ a" + Repeated(" or a") + " }}",
                               "{% if a %}" + Repeated("{%elif a%}", 128'000) + "{% endif %}",
                               "{{ a" + Repeated("[0]") + " }}",
                               "{{ a" + Repeated("()") + " }}",
                               "{{ 1" + Repeated("<1") + " }}",
                               "{{ a" + Repeated(" is a") + " }}"};
  for (const std::string& text : kDeep) {
    const TemporaryFolder folder{{"chat_template.jinja", text}};
    const auto loaded = ChatTemplate::Load(folder.path());
    if (!loaded.ok()) {
      EXPECT_PRED_FORMAT2(testing::IsSubstring,
                          "/chat_template.jinja: ", loaded.status().message());
    } else {
      const auto rendered = (*loaded)->Render("[]", "", "", true);
      EXPECT_TRUE(rendered.ok() || !rendered.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace tandem
