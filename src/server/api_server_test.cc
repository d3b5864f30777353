#include "server/api_server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/api_response.h"
#include "server/fake_engine.h"
#include "server/test_client.h"

namespace tandem {
namespace {

constexpr int32_t kEos = 1;

class ApiServerTest : public testing::Test {
 protected:
  void SetUp() override {
    ApiServerOptions options;
    options.http.port = 0;
    options.http.max_body_bytes = 1 << 20;
    server_ = std::make_unique<ApiServer>(options);
    ASSERT_TRUE(server_->Start().ok());
  }

  void Ready() {
    auto model = LoadServedModel(TANDEM_SOURCE_DIR "/models/tandem-tiny", "", "");
    ASSERT_TRUE(model.ok()) << model.status().message();
    auto engine = std::make_unique<FakeEngine>();
    engine_ = engine.get();
    model->vocab_size = engine->info().vocab_size;
    model->context_length = engine->info().context_length;
    tokenizer_ = model->tokenizer.get();  // lives as long as the server
    server_->SetReady(std::move(model).value(), std::move(engine));
  }

  std::vector<int32_t> Encode(const std::string& text) {
    return tokenizer_->Encode(text, false).value();
  }

  // The tokens of `text`, one event each, ended by `reason` (with EOS if it is kStop).
  void Answer(const GenerationRequest& request, const std::string& text, FinishReason reason) {
    std::vector<int32_t> tokens = Encode(text);
    if (reason == FinishReason::kStop) tokens.push_back(kEos);
    for (size_t i = 0; i < tokens.size(); ++i) {
      TokenEvent event;
      event.request_id = request.id;
      event.tokens = {tokens[i]};
      if (request.logprobs >= 0) {
        event.logprobs = {{tokens[i], -0.1f, {{tokens[i], -0.1f}, {5, -2.5f}}}};
      }
      if (i + 1 == tokens.size()) {
        event.finish_reason = reason;
        event.statistics.drafted = 6;
        event.statistics.accepted = 4;
        event.statistics.verify_steps = 2;
        event.statistics.verify_emitted = 6;
      }
      engine_->Emit(std::move(event));
    }
  }

  TestResponse Refused(const std::string& path, const std::string& body) {
    return TestClient(server_->port()).Request("POST", path, body);
  }

  static std::vector<std::string> Events(const TestResponse& response) {
    std::vector<std::string> events;
    std::string rest = response.body;
    for (size_t end; (end = rest.find("\n\n")) != std::string::npos; rest.erase(0, end + 2)) {
      EXPECT_EQ(rest.substr(0, 6), "data: ");
      events.push_back(rest.substr(6, end - 6));
    }
    EXPECT_EQ(rest, "");
    return events;
  }

  std::unique_ptr<ApiServer> server_;
  FakeEngine* engine_ = nullptr;
  const Tokenizer* tokenizer_ = nullptr;
};

const char kChat[] = "/v1/chat/completions";
const char kCompletions[] = "/v1/completions";

TEST_F(ApiServerTest, AnswersAChat) {
  Ready();
  TestClient client(server_->port());
  client.SendRequest(
      "POST", kChat,
      R"({"model":"tandem-tiny","messages":[{"role":"user","content":"Hi"}],"seed":7})");
  const GenerationRequest request = engine_->NextRequest();
  EXPECT_EQ(request.prompt, Encode("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>"));
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.stop_token_ids, std::vector<int32_t>{kEos});
  EXPECT_EQ(request.max_tokens, 200 - static_cast<int>(request.prompt.size()));
  Answer(request, "Hello there.", FinishReason::kStop);
  const TestResponse response = client.ReadResponse();
  EXPECT_EQ(response.status, 200);
  Json body = Json::parse(response.body);
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  EXPECT_GT(body["created"], 0);
  body.erase("id");
  body.erase("created");
  const size_t generated = Encode("Hello there.").size() + 1;
  const Json expected = {
      {"object", "chat.completion"},
      {"model", "tandem-tiny"},
      {"seed", 7},
      {"choices",
       {{{"index", 0},
         {"logprobs", nullptr},
         {"finish_reason", "stop"},
         {"message", {{"role", "assistant"}, {"content", "Hello there."}}}}}},
      {"usage",
       {{"prompt_tokens", request.prompt.size()},
        {"completion_tokens", generated},
        {"total_tokens", request.prompt.size() + generated},
        {"speculation", {{"drafted", 6}, {"accepted", 4}, {"accept_length", 3.0}}}}}};
  EXPECT_EQ(body, expected);
}

TEST_F(ApiServerTest, StreamsAChat) {
  Ready();
  TestClient client(server_->port());
  client.SendRequest("POST", kChat, R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,
      "stream_options":{"include_usage":true}})");
  const GenerationRequest request = engine_->NextRequest();
  Answer(request, "Hello there.", FinishReason::kStop);
  const TestResponse response = client.ReadResponse();
  EXPECT_NE(response.headers.find("Content-Type: text/event-stream"), std::string::npos);
  std::vector<std::string> events = Events(response);
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], Json::parse(events[0])["id"]);
    EXPECT_EQ(chunk["seed"], request.sampling.seed);
    if (i + 1 == events.size()) {
      EXPECT_EQ(chunk["choices"], Json::array());
      EXPECT_EQ(chunk["usage"]["speculation"]["accept_length"], 3.0);
      continue;
    }
    EXPECT_EQ(chunk["usage"], nullptr);
    const Json& choice = chunk["choices"][0];
    if (i == 0) {
      EXPECT_EQ(choice["delta"], Json({{"role", "assistant"}, {"content", ""}}));
    }
    const bool last = i + 2 == events.size();
    EXPECT_EQ(choice["finish_reason"], last ? Json("stop") : Json(nullptr));
    if (last) {
      EXPECT_EQ(choice["delta"], Json::object());
    }
    text += choice["delta"].value("content", "");
  }
  EXPECT_EQ(text, "Hello there.");
}

TEST_F(ApiServerTest, CompletionsAreEqualStreamedAndNot) {
  Ready();
  const std::string text = "one two three";
  TestClient client(server_->port());
  client.SendRequest("POST", kCompletions, R"({"prompt":"count:","max_tokens":3})");
  GenerationRequest request = engine_->NextRequest();
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_EQ(request.prompt, tokenizer_->Encode("count:", true).value());
  Answer(request, text, FinishReason::kLength);
  const Json plain = Json::parse(client.ReadResponse().body);
  EXPECT_EQ(plain["object"], "text_completion");
  EXPECT_EQ(plain["choices"][0]["text"], text);
  EXPECT_EQ(plain["choices"][0]["finish_reason"], "length");

  client.SendRequest("POST", kCompletions, R"({"prompt":[0,70,71],"stream":true})");
  request = engine_->NextRequest();
  EXPECT_EQ(request.prompt, (std::vector<int32_t>{0, 70, 71}));
  EXPECT_EQ(request.max_tokens, 16);
  Answer(request, text, FinishReason::kLength);
  const std::vector<std::string> events = Events(client.ReadResponse());
  std::string streamed;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_FALSE(chunk.contains("usage"));
    streamed += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "length");
}

TEST_F(ApiServerTest, NeverSendsHalfACharacter) {
  Ready();
  const std::string text = "a\U0001F388b é 毕";
  ASSERT_GT(Encode("\U0001F388").size(), 1u);  // the character is several tokens
  TestClient client(server_->port());
  client.SendRequest("POST", kCompletions, R"({"prompt":"x","stream":true})");
  Answer(engine_->NextRequest(), text, FinishReason::kStop);
  std::string streamed;
  for (const std::string& event : Events(client.ReadResponse())) {
    if (event != "[DONE]") streamed += Json::parse(event)["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(event.find("\uFFFD"), std::string::npos) << event;
  }
  EXPECT_EQ(streamed, text);
}

TEST_F(ApiServerTest, GivesOneLogprobPerToken) {
  Ready();
  const size_t tokens = Encode("yes or no").size() + 1;
  TestClient client(server_->port());
  client.SendRequest("POST", kChat, R"({"messages":[{"role":"user","content":"Hi"}],
      "logprobs":true,"top_logprobs":2})");
  GenerationRequest request = engine_->NextRequest();
  EXPECT_EQ(request.logprobs, 2);
  Answer(request, "yes or no", FinishReason::kStop);
  const Json chat = Json::parse(client.ReadResponse().body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(chat.size(), tokens);
  EXPECT_EQ(chat[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(chat[0]["logprob"].dump(), "-0.1");
  EXPECT_EQ(chat[0]["bytes"].size(), chat[0]["token"].get<std::string>().size());
  EXPECT_EQ(chat.back()["token"], "<｜end▁of▁sentence｜>");

  client.SendRequest("POST", kCompletions, R"({"prompt":"x","logprobs":2})");
  request = engine_->NextRequest();
  Answer(request, "yes or no", FinishReason::kStop);
  const Json completion = Json::parse(client.ReadResponse().body)["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"].size(), tokens);
  EXPECT_EQ(completion["token_logprobs"].size(), tokens);
  EXPECT_EQ(completion["top_logprobs"].size(), tokens);
  EXPECT_EQ(completion["text_offset"].back(), std::string("yes or no").size());
}

TEST_F(ApiServerTest, RefusesWithTheReason) {
  Ready();
  const TestResponse bad = Refused(kChat, "{\"messages\": [");
  EXPECT_EQ(bad.status, 400);
  const Json error = Json::parse(bad.body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_NE(error["message"].get<std::string>().find("not valid JSON"), std::string::npos);
  EXPECT_TRUE(error.contains("param") && error.contains("code"));

  const TestResponse lengthy =
      Refused(kCompletions, Json({{"prompt", std::vector<int>(200, 70)}}).dump());
  EXPECT_EQ(lengthy.status, 400);
  EXPECT_EQ(Json::parse(lengthy.body)["error"]["code"], "context_length_exceeded");

  const TestResponse model = Refused(kCompletions, R"({"model":"other","prompt":"x"})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(Json::parse(model.body)["error"]["code"], "model_not_found");

  EXPECT_EQ(Refused(kCompletions, std::string(2 << 20, ' ')).status, 413);
  EXPECT_EQ(Refused("/v1/none", "{}").status, 404);
  EXPECT_EQ(TestClient(server_->port()).Request("GET", kChat).status, 405);

  engine_->Refuse(InvalidArgument("no such replica: 9"));
  const TestResponse refused = Refused(kCompletions, R"({"prompt":"x","data_parallel_rank":9})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["message"], "no such replica: 9");
}

TEST_F(ApiServerTest, AClientThatGoesCancelsItsRequest) {
  Ready();
  for (const char* stream : {"true", "false"}) {
    TestClient client(server_->port());
    client.SendRequest("POST", kCompletions,
                       std::string(R"({"prompt":"x","stream":)") + stream + "}");
    const GenerationRequest request = engine_->NextRequest();
    TokenEvent event;
    event.request_id = request.id;
    event.tokens = Encode("some");
    engine_->Emit(event);
    client.Close();
    engine_->AwaitCancel(request.id);
    event.finish_reason = FinishReason::kCancelled;
    engine_->Emit(event);
  }
  EXPECT_EQ(TestClient(server_->port()).Request("GET", "/health").status, 200);
}

TEST_F(ApiServerTest, AFailedRequestIsAnError) {
  Ready();
  TestClient client(server_->port());
  for (const bool stream : {false, true}) {
    client.SendRequest("POST", kCompletions, Json({{"prompt", "x"}, {"stream", stream}}).dump());
    TokenEvent event;
    event.request_id = engine_->NextRequest().id;
    event.tokens = Encode("some");
    engine_->Emit(event);
    event.finish_reason = FinishReason::kError;
    event.error = "no token is left";
    engine_->Emit(event);
    const TestResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, stream ? 200 : 500);
    const std::string error = stream ? Events(response)[1] : response.body;
    EXPECT_EQ(Json::parse(error)["error"]["message"], "no token is left");
  }
}

TEST_F(ApiServerTest, HealthFollowsTheServersLife) {
  TestClient client(server_->port());
  server_->SetProgress(0.25);
  const TestResponse loading = client.Request("GET", "/health");
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(Json::parse(loading.body), Json({{"status", "loading"}, {"progress", 0.25}}));
  EXPECT_EQ(client.Request("POST", kChat, "{}").status, 503);
  EXPECT_EQ(client.Request("GET", "/v1/models").status, 503);
  Ready();
  const TestResponse ok = client.Request("GET", "/health");
  EXPECT_EQ(ok.status, 200);
  EXPECT_EQ(Json::parse(ok.body), Json({{"status", "ok"}}));
  const Json models = Json::parse(client.Request("GET", "/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "tandem-tiny");
  EngineStatus status;
  status.failed = true;
  status.failure = "rank 3 is late";
  engine_->SetStatus(status);
  const TestResponse failed = client.Request("GET", "/health");
  EXPECT_EQ(failed.status, 503);
  EXPECT_NE(failed.body.find("rank 3 is late"), std::string::npos);
  EXPECT_EQ(client.Request("POST", kChat, "{}").status, 503);
}

TEST_F(ApiServerTest, StopsWithOpenRequests) {
  Ready();
  TestClient client(server_->port());
  client.SendRequest("POST", kCompletions, R"({"prompt":"x","stream":true})");
  engine_->NextRequest();
  server_->Stop();
  EXPECT_EQ(client.ReadResponse().status, 0);
}

}  // namespace
}  // namespace tandem
