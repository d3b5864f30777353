#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "text/test_util.h"

namespace tandem {
namespace {

using testing::IsSubstring;

std::unique_ptr<ChatTemplate> LoadTiny() {
  auto loaded = ChatTemplate::Load(TinyModel());
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return std::move(loaded).value();
}

// `source` rendered with `variables`; the text, or "ERROR " and the message.
std::string Render(const std::string& source, const std::string& variables = "",
                   const std::string& messages = "[]", const std::string& tools = "") {
  const TemporaryFolder folder{{"chat_template.jinja", source}};
  auto loaded = ChatTemplate::Load(folder.path());
  if (!loaded.ok()) return "ERROR " + loaded.status().message();
  auto text = (*loaded)->Render(messages, tools, variables, true);
  return text.ok() ? *text : "ERROR " + text.status().message();
}

TEST(ChatTemplate, GoldenVectors) {
  const auto chat_template = LoadTiny();
  const auto vectors = ReadJson(TANDEM_SOURCE_DIR "/golden/chat_template.json");
  ASSERT_EQ(vectors.size(), 22u);
  for (const auto& vector : vectors) {
    auto arguments = vector["arguments"];
    const std::string tools = arguments.contains("tools") ? arguments["tools"].dump() : "";
    arguments.erase("tools");
    const auto text = chat_template->Render(vector["messages"].dump(), tools, arguments.dump(),
                                            vector["add_generation_prompt"]);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, vector["text"].get<std::string>());
  }
}

// Expected texts in these tests are what jinja2 3.1 prints in transformers' environment.
TEST(ChatTemplate, ToJsonIsPythons) {
  const std::string x =
      R"({"x": {"z": "ü<&>'\"\\\n\u0001\u007f🦊", "a": [1, -2.50, 1e16, 1e-5, 123456.0,
      true, false, null, [], {}], "m": {"k": {"z": [1]}}}})";
  EXPECT_EQ(
      Render("{{ x | tojson }}", x),
      "{\"z\": \"ü<&>'\\\"\\\\\\n\\u0001\x7f🦊\", \"a\": [1, -2.5, 1e+16, 1e-05, 123456.0, "
      "true, "
      "false, null, [], {}], \"m\": {\"k\": {\"z\": [1]}}}");
  // Exactly half-way between two shortest forms: Python takes the even one.
  EXPECT_EQ(Render("{{ x | tojson }}", R"({"x": [-1462468587316101.25, 5e-324, 0.1, 1e15]})"),
            "[-1462468587316101.2, 5e-324, 0.1, 1000000000000000.0]");
  EXPECT_EQ(Render("{{ x.m | tojson(indent=2) }}", x),
            "{\n  \"k\": {\n    \"z\": [\n      1\n    ]\n  }\n}");
  EXPECT_EQ(Render("{{ {'b': [], 'a': 'ü🦊'} | tojson(ensure_ascii=true, sort_keys=true) }}"),
            R"({"a": "\u00fc\ud83e\udd8a", "b": []})");
  EXPECT_EQ(Render("{{ {'b': [1, 2]} | tojson(separators=(',', ':')) }}"), R"({"b":[1,2]})");
  EXPECT_EQ(Render("{{ {1: 2, none: true} | tojson }}"), R"({"1": 2, "null": true})");
  EXPECT_PRED_FORMAT2(IsSubstring, "not JSON serializable", Render("{{ nothing | tojson }}"));
}

TEST(ChatTemplate, ValuesPrintAsInPython) {
  EXPECT_EQ(
      Render("{{ none }} {{ true }} {{ 1.0 }} {{ 2 }} {{ ['a', none, \"it's\"] }} {{ {'k': 1} }}"),
      "None True 1.0 2 ['a', None, \"it's\"] {'k': 1}");
  EXPECT_EQ(Render("[{{ nothing }}|{{ x | string }}]", R"({"x": false})"), "[|False]");
}

TEST(ChatTemplate, UndefinedIsFalseAndEmpty) {
  EXPECT_EQ(Render("{% if nothing %}a{% else %}b{% endif %}{% for x in nothing %}c{% endfor %}"
                   "{{ nothing | length }}{{ messages[0].tool_calls is defined }}"
                   "{{ 'x' in nothing }}",
                   "", R"([{"role": "user"}])"),
            "b0FalseFalse");
  EXPECT_PRED_FORMAT2(IsSubstring, "undefined", Render("{{ nothing.field }}"));
}

TEST(ChatTemplate, WhiteSpaceIsTransformers) {
  EXPECT_EQ(Render("  {% if true %}\n  a\n  {% endif %}\nb\n"), "  a\nb");
  EXPECT_EQ(Render("a\r\n{%- if true %}\r\nb{% endif %}"), "ab");
}

TEST(ChatTemplate, PythonMethodsAndLoops) {
  EXPECT_EQ(Render("{{ ' aXbX '.strip().split('X') }}{{ 'a-b-c'.rsplit('-', 1)[0] }}"
                   "{{ 'abc'.startswith('ab') }}{{ 'abc'.removeprefix('a') }}{{ 'A'.lower() }}"
                   "{{ 'k=v'.partition('=')[2] }}{{ 'a.b'.replace('.', '-') }}"),
            "['a', 'b', '']a-bTruebcava-b");
  EXPECT_EQ(Render("{% for k, v in x.items() %}{{ k }}{{ v }},{% endfor %}{{ x.get('q', 7) }}"
                   "{{ x.keys() | list }}",
                   R"({"x": {"b": 1, "a": 2}})"),
            "b1,a2,7['b', 'a']");
  EXPECT_EQ(Render("{% for i in [1, 2, 3, 4][::-1] %}{% if i == 3 %}{% continue %}{% endif %}"
                   "{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "42");
  EXPECT_EQ(Render("{% set n = namespace(x=0) %}{% for i in range(3) %}{% set n.x = n.x + i %}"
                   "{% endfor %}{{ n.x }}{{ 'abc'[0] }}{{ 'abc'[-1] }}{{ [1] + [2] }}"),
            "3ac[1, 2]");
  EXPECT_EQ(Render("{{ 'x' is sequence }}{{ '7' | int + 1 }}{{ 'x' | int }}{{ 'x' | float }}"
                   "{{ 'ébc'.index('b') }}{{ [4, 5].index(5) }}{{ 'a  b'.rsplit() }}"),
            "True800.011['a', 'b']");
  EXPECT_EQ(Render("{% generation %}a{%- endgeneration -%} b"), "ab");
}

TEST(ChatTemplate, StrftimeNowFormatsLocalTime) {
  const auto today = [] {
    const time_t now = time(nullptr);
    tm local;
    localtime_r(&now, &local);
    char text[64];
    strftime(text, sizeof text, "%d %b %Y 100%%", &local);
    return std::string(text);
  };
  const std::string before = today();
  const std::string rendered = Render("{{ strftime_now('%d %b %Y 100%%') }}");
  EXPECT_TRUE(rendered == before || rendered == today()) << rendered;
}

TEST(ChatTemplate, ErrorsCarryTheTemplatesWords) {
  EXPECT_EQ(Render("{{ raise_exception('Roles must alternate') }}"),
            "ERROR chat template: Roles must alternate");
  EXPECT_EQ(Render("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}"),
            "ERROR chat template: no");
  const std::string syntax = Render("a\n{% if %}");
  EXPECT_PRED_FORMAT2(IsSubstring, "chat_template.jinja: syntax error", syntax);
  EXPECT_PRED_FORMAT2(IsSubstring, "chat_template:2", syntax);
  EXPECT_PRED_FORMAT2(IsSubstring, "chat_template:2", Render("\n{{ 1 + 'a' }}"));
}

TEST(ChatTemplate, EndlessAndHugeRenderingsEnd) {
  const std::string outer = "{% for i in range(100000) %}{% for j in range(100000) %}";
  const std::string end = "{% endfor %}{% endfor %}";
  EXPECT_PRED_FORMAT2(IsSubstring, "fuel", Render(outer + end));
  EXPECT_PRED_FORMAT2(IsSubstring, "bytes of output", Render(outer + std::string(1000, 'x') + end));
  EXPECT_PRED_FORMAT2(
      IsSubstring, "bytes of output",
      Render("{% set x = 'x' * 100000 %}{% set y %}" + outer + "{{ x }}" + end + "{% endset %}"));
  EXPECT_PRED_FORMAT2(IsSubstring, "recursion",
                      Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"));
  const std::string nest = "{% set n = namespace(x=[1]) %}{% for i in range(50) %}";
  EXPECT_PRED_FORMAT2(IsSubstring, "bytes of output",
                      Render(nest + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}"));
  EXPECT_PRED_FORMAT2(IsSubstring, "nested too deeply",
                      Render("{% set n = namespace(x=[1]) %}{% for i in range(1000) %}"
                             "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}"));
}

TEST(ChatTemplate, WrongJsonIsNamed) {
  EXPECT_PRED_FORMAT2(IsSubstring, "messages: ", Render("a", "", "{}"));
  EXPECT_PRED_FORMAT2(IsSubstring, "messages: ", Render("a", "", "[],"));
  EXPECT_PRED_FORMAT2(IsSubstring, "messages: ", Render("a", "", "[\"\xff\"]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "messages: ", Render("a", "", std::string(100'000, '[')));
  EXPECT_PRED_FORMAT2(IsSubstring, "tools: ", Render("a", "", "[]", "{}"));
  EXPECT_PRED_FORMAT2(IsSubstring, "template arguments: ", Render("a", "[]"));
  EXPECT_PRED_FORMAT2(IsSubstring, "\"messages\"", Render("a", R"({"messages": []})"));
  EXPECT_EQ(Render("{{ tools is none }}", "", "[]", "null"), "True");
}

TEST(ChatTemplate, SourcesAndTheirOrder) {
  const std::string named = R"({"bos_token": {"content": "<s>"}, "chat_template": [
    {"name": "default", "template": "D{{ bos_token }}"}, {"name": "tool_use", "template": "T"}]})";
  const TemporaryFolder config{{"tokenizer_config.json", named}, {"own.txt", "F{{ bos_token }}"}};
  auto loaded = ChatTemplate::Load(config.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(*(*loaded)->Render("[]", "", "", true), "D<s>");
  EXPECT_EQ(*(*loaded)->Render("[]", "", R"({"bos_token": "B"})", true), "DB");
  EXPECT_EQ(*(*loaded)->Render("[]", R"([{"type": "function"}])", "", true), "T");
  auto file = ChatTemplate::Load(config.path(), config.path() + "/own.txt");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*(*file)->Render("[]", "", "", true), "F<s>");

  const TemporaryFolder both{{"tokenizer_config.json", named}, {"chat_template.jinja", "J"}};
  EXPECT_EQ(*(*ChatTemplate::Load(both.path()))->Render("[]", "", "", true), "J");

  const TemporaryFolder none{{"tokenizer_config.json", "{}"}};
  EXPECT_EQ(ChatTemplate::Load(none.path()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ChatTemplate::Load(none.path(), "/no/such/file").status().code(),
            StatusCode::kNotFound);
}

TEST(ChatTemplate, IsThreadSafe) {
  const auto chat_template = LoadTiny();
  const auto render = [&] {
    return *chat_template->Render(R"([{"role": "user", "content": "Hi"}])", "", "", true);
  };
  const std::string expected = render();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += render() != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace tandem
