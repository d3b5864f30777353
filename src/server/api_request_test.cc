#include "server/api_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

class ApiRequestTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = LoadServedModel(TANDEM_SOURCE_DIR "/models/tandem-tiny", "", "");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = new ServedModel(std::move(loaded).value());
    model_->context_length = 100;
  }
  static void TearDownTestSuite() { delete model_; }

  static ApiRequest Read(const std::string& body, ApiKind kind) {
    ApiRequest request;
    const auto error = ReadApiRequest(ParseJson(body).value(), kind, *model_, &request);
    EXPECT_FALSE(error) << body << ": " << error->message;
    return request;
  }

  // The error of `fields` beside a good prompt.
  static ApiError Refusal(const std::string& fields, ApiKind kind = ApiKind::kCompletion) {
    const std::string prompt = kind == ApiKind::kChat
                                   ? R"("messages":[{"role":"user","content":"x"}])"
                                   : R"("prompt":"x")";
    return RefusalOf("{" + prompt + "," + fields + "}", kind);
  }

  static ApiError RefusalOf(const std::string& body, ApiKind kind) {
    ApiRequest request;
    const auto error = ReadApiRequest(ParseJson(body).value(), kind, *model_, &request);
    EXPECT_TRUE(error) << "accepted: " << body;
    return error.value_or(ApiError());
  }

  static ServedModel* model_;
};

ServedModel* ApiRequestTest::model_ = nullptr;

TEST_F(ApiRequestTest, TakesDefaultsFromTheModelThenTheApi) {
  const ApiRequest plain = Read(R"({"prompt":"x"})", ApiKind::kCompletion);
  EXPECT_EQ(plain.generation.sampling.temperature, 1.0f);
  EXPECT_EQ(plain.generation.sampling.top_p, 1.0f);
  EXPECT_EQ(plain.generation.max_tokens, 16);
  EXPECT_EQ(plain.generation.logprobs, -1);
  EXPECT_LT(plain.generation.sampling.seed, 1ull << 53);
  const GenerationDefaults old = model_->defaults;
  model_->defaults.temperature = 0.6f;
  model_->defaults.top_p = 0.95f;
  model_->defaults.top_k = 40;
  const ApiRequest from_model =
      Read(R"({"prompt":"x","top_p":0.5,"top_k":-1})", ApiKind::kCompletion);
  model_->defaults = old;
  EXPECT_EQ(from_model.generation.sampling.temperature, 0.6f);
  EXPECT_EQ(from_model.generation.sampling.top_p, 0.5f);
  EXPECT_EQ(from_model.generation.sampling.top_k, 0);
}

TEST_F(ApiRequestTest, ReadsEveryField) {
  const ApiRequest request = Read(
      R"({"prompt":[0,5],"max_tokens":9,"max_completion_tokens":7,"temperature":0,"top_p":0.9,
          "top_k":3,"min_p":0.1,"seed":42,"stop_token_ids":[8,9],"ignore_eos":true,"logprobs":4,
          "prompt_logprobs":0,"data_parallel_rank":1,"arrival_step":12,"skip_special_tokens":false,
          "user":"ignored","unheard_of":[1]})",
      ApiKind::kLine);
  const GenerationRequest& g = request.generation;
  EXPECT_EQ(g.prompt, (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(g.max_tokens, 7);
  EXPECT_EQ(g.sampling.temperature, 0.0f);
  EXPECT_EQ(g.sampling.top_p, 0.9f);
  EXPECT_EQ(g.sampling.top_k, 3);
  EXPECT_EQ(g.sampling.min_p, 0.1f);
  EXPECT_EQ(g.sampling.seed, 42u);
  EXPECT_EQ(g.stop_token_ids, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(g.logprobs, 4);
  EXPECT_EQ(g.prompt_logprobs, 0);
  EXPECT_EQ(g.data_parallel_rank, 1);
  EXPECT_EQ(g.arrival_step, 12);
  EXPECT_FALSE(request.skip_special_tokens);
}

TEST_F(ApiRequestTest, RefusesWrongValuesByName) {
  for (const char* field : {R"("temperature":-1)",
                            R"("temperature":"hot")",
                            R"("temperature":1e300)",
                            R"("top_p":0)",
                            R"("top_p":1.5)",
                            R"("top_k":-2)",
                            R"("top_k":1.5)",
                            R"("min_p":2)",
                            R"("seed":-1)",
                            R"("seed":18446744073709551615)",
                            R"("max_tokens":0)",
                            R"("max_tokens":99999999999)",
                            R"("max_completion_tokens":"5")",
                            R"("stop_token_ids":[3072])",
                            R"("stop_token_ids":7)",
                            R"("ignore_eos":1)",
                            R"("logprobs":21)",
                            R"("logprobs":true)",
                            R"("stream":"yes")",
                            R"("stream_options":3)",
                            R"("data_parallel_rank":-1)",
                            R"("skip_special_tokens":0)"}) {
    const ApiError error = Refusal(field);
    EXPECT_EQ(error.status, 400) << field;
    EXPECT_EQ("\"" + error.param + "\"", std::string(field).substr(0, error.param.size() + 2));
    EXPECT_NE(error.message.find(error.param), std::string::npos) << error.message;
  }
  EXPECT_EQ(Refusal(R"("top_logprobs":3)", ApiKind::kChat).param, "top_logprobs");
}

TEST_F(ApiRequestTest, RefusesWhatIsNotOfferedButNotItsNeutralValues) {
  for (const char* field :
       {R"("n":2)", R"("best_of":3)", R"("stop":"end")", R"("stop":["a"])",
        R"("presence_penalty":0.5)", R"("frequency_penalty":-1)", R"("repetition_penalty":1.1)",
        R"("logit_bias":{"5":1})", R"("response_format":{"type":"json_object"})", R"("echo":true)",
        R"("suffix":"x")", R"("guided_regex":"a*")", R"("tool_choice":"required")",
        R"("prompt_logprobs":1)"}) {
    const ApiError error = Refusal(field);
    EXPECT_EQ(error.code, "unsupported_parameter") << field;
    EXPECT_EQ("\"" + error.param + "\"", std::string(field).substr(0, error.param.size() + 2));
  }
  Read(R"({"prompt":"x","n":1,"best_of":1,"stop":null,"presence_penalty":0,"frequency_penalty":0.0,
           "repetition_penalty":1.0,"logit_bias":{},"response_format":{"type":"text"},"echo":false,
           "suffix":"","min_tokens":0,"tool_choice":"none","tools":[],"stream_options":null})",
       ApiKind::kCompletion);
  Read(R"({"prompt":"x","stop":[]})", ApiKind::kCompletion);
}

TEST_F(ApiRequestTest, RefusesWrongPrompts) {
  const struct {
    ApiKind kind;
    const char* body;
    const char* part;  // of the message
  } kCases[] = {
      {ApiKind::kCompletion, "{}", "prompt is missing"},
      {ApiKind::kCompletion, R"({"prompt":7})", "a string or an array of token ids"},
      {ApiKind::kCompletion, R"({"prompt":["a","b"]})", "one prompt per request"},
      {ApiKind::kCompletion, R"({"prompt":[]})", "empty"},
      {ApiKind::kCompletion, R"({"prompt":[1,4000]})", "item 1 is not a token id"},
      {ApiKind::kCompletion, R"({"prompt":[1,-1]})", "item 1"},
      {ApiKind::kCompletion, "[]", "must be a JSON object"},
      {ApiKind::kChat, R"({"messages":[]})", "at least one message"},
      {ApiKind::kChat, R"({"messages":"hi"})", "array"},
      {ApiKind::kChat, R"({"messages":[3]})", "messages[0]"},
      {ApiKind::kChat, R"({"messages":[{"role":"user"}]})", "content is missing"},
      {ApiKind::kChat, R"({"messages":[{"role":"king","content":"x"}]})", "role must be"},
      {ApiKind::kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
       "text"},
      {ApiKind::kLine, "{}", "prompt, prompt_token_ids or messages"},
      {ApiKind::kLine, R"({"prompt":"x","prompt_token_ids":[1]})", "exclude each other"},
  };
  for (const auto& c : kCases) {
    const ApiError error = RefusalOf(c.body, c.kind);
    EXPECT_EQ(error.status, 400);
    EXPECT_NE(error.message.find(c.part), std::string::npos) << c.body << ": " << error.message;
  }
}

TEST_F(ApiRequestTest, RendersMessagesWithToolsAndArguments) {
  const auto text_of = [](const std::string& body) {
    return model_->tokenizer->Decode(Read(body, ApiKind::kChat).generation.prompt, false);
  };
  EXPECT_EQ(text_of(R"({"messages":[{"role":"developer","content":"Be kind."},
                {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
                "chat_template_kwargs":{"thinking":true}})"),
            "<｜begin▁of▁sentence｜>Be kind.<｜User｜>a\nb<｜Assistant｜><think>\n");
  EXPECT_EQ(
      text_of(R"({"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false})"),
      "<｜begin▁of▁sentence｜><｜User｜>a");
  // The fields' order is the client's.
  const std::string tools = text_of(R"({"messages":[{"role":"user","content":"a"}],
      "tools":[{"type":"function","function":{"name":"f","description":"d","arguments":{}}}]})");
  EXPECT_NE(tools.find(R"({"name": "f", "description": "d", "arguments": {}})"), std::string::npos)
      << tools;
}

TEST_F(ApiRequestTest, BoundsWhatIsParsed) {
  EXPECT_TRUE(ParseJson(R"({"a":"[[[[{\"::"})").ok());
  EXPECT_TRUE(ParseJson(std::string(100, '[') + std::string(100, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(101, '[') + std::string(101, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(1 << 20, '[')).ok());
  EXPECT_FALSE(ParseJson("\"\xff\"").ok());
  std::string wide = "{";
  for (int i = 0; i < 1025; ++i) wide += "\"" + std::to_string(i) + "\":1,";
  wide.back() = '}';
  EXPECT_FALSE(ParseJson(wide).ok());
}

}  // namespace
}  // namespace tandem
