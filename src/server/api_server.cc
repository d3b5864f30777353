#include "server/api_server.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "server/api_response.h"
#include "server/api_session.h"

namespace tandem {
namespace {

int StatusOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kResourceExhausted:  // can't fit even an empty pool
      return 400;
    case StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

HttpResponse ErrorResponse(const ApiError& error) {
  return {error.status, ErrorJson(error)};
}

std::string ServerErrorBody(int status, const std::string& message) {
  return ErrorJson(MakeApiError(status, message));
}

}  // namespace

ApiServer::ApiServer(ApiServerOptions options)
    : options_(std::move(options)),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      http_(std::make_unique<HttpServer>(options_.http, ServerErrorBody)),
      tasks_(std::make_unique<TaskThread>()) {
  AddRoutes();
}

ApiServer::~ApiServer() {
  Stop();
}

Status ApiServer::Start() {
  return http_->Start();
}

int ApiServer::port() const {
  return http_->port();
}

void ApiServer::SetReady(ServedModel model, std::unique_ptr<Engine> engine) {
  CHECK(!ready_);
  model_ = std::move(model);
  engine_ = std::move(engine);
  reporter_ = std::make_unique<StatusReporter>(*engine_, options_.status_interval);
  ready_ = true;
}

void ApiServer::Stop() {
  http_->Stop();
  tasks_.reset();
  reporter_.reset();
  ready_ = false;
  engine_.reset();
}

void ApiServer::AddRoutes() {
  http_->Route("GET", "/health", [this](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->Send(Health());
  });
  http_->Route("GET", "/v1/models", [this](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    const auto error = NotServing();
    writer->Send(error ? ErrorResponse(*error) : Models());
  });
  const auto generate = [this](ApiKind kind) {
    return [this, kind](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      if (const auto error = NotServing()) return writer->Send(ErrorResponse(*error));
      tasks_->Run([this, kind, body = std::move(request.body), writer = std::move(writer)] {
        Generate(kind, body, writer);
      });
    };
  };
  http_->Route("POST", "/v1/completions", generate(ApiKind::kCompletion));
  http_->Route("POST", "/v1/chat/completions", generate(ApiKind::kChat));
}

HttpResponse ApiServer::Health() const {
  if (!ready_) {
    return {503, Json{{"status", "loading"}, {"progress", progress_.load()}}.dump()};
  }
  const EngineStatus status = engine_->status();
  if (status.failed) {
    return {503, Json{{"status", "failed"}, {"reason", status.failure}}.dump()};
  }
  return {200, Json{{"status", "ok"}}.dump()};
}

HttpResponse ApiServer::Models() const {
  const Json model = {{"id", model_->name},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "tandem"},
                      {"max_model_len", model_->context_length}};
  return {200, Json{{"object", "list"}, {"data", Json::array({model})}}.dump()};
}

std::optional<ApiError> ApiServer::NotServing() const {
  if (!ready_) {
    return MakeApiError(503, fmt::format("the model is loading: {:.0f} %", progress_ * 100));
  }
  const EngineStatus status = engine_->status();
  if (status.failed) return MakeApiError(503, "the engine has failed: " + status.failure);
  return std::nullopt;
}

// On the task thread.
void ApiServer::Generate(ApiKind kind, const std::string& body,
                         std::shared_ptr<ResponseWriter> writer) {
  const Result<Json> parsed = ParseJson(body);
  if (!parsed.ok())
    return writer->Send(ErrorResponse(MakeApiError(400, parsed.status().message())));
  ApiRequest request;
  const uint64_t id = next_id_++;
  request.generation.id = id;
  if (const auto error = ReadApiRequest(*parsed, kind, *model_, &request)) {
    return writer->Send(ErrorResponse(*error));
  }
  auto session = std::make_shared<ApiSession>(request, *model_, writer);
  const Status status = engine_->Submit(
      std::move(request.generation), [this, session = std::move(session)](TokenEvent event) {
        http_->Post([session, event = std::move(event)] { session->OnEvent(event); });
      });
  if (!status.ok()) {
    return writer->Send(ErrorResponse(MakeApiError(StatusOf(status), status.message())));
  }
  writer->OnDisconnect([this, id] {
    if (ready_) engine_->Cancel(id);
  });
}

}  // namespace tandem
