// The server: the API's routes over the HTTP server, one model and one engine. Listens before the
// model is loaded.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "server/api_request.h"
#include "server/http_server.h"
#include "server/served_model.h"
#include "server/status_line.h"
#include "server/task_thread.h"

namespace tandem {

struct ApiServerOptions {
  HttpServerOptions http;
  std::chrono::milliseconds status_interval{5000};  // of the status lines while busy
};

// Invariants: 1. the I/O thread never waits for tokenizer, template or engine; 2. the engine never
// waits for the network; 3. a client that goes cancels its request.
class ApiServer {
 public:
  explicit ApiServer(ApiServerOptions options);
  ~ApiServer();

  // Listens; routes answer 503 until SetReady(). Errors: as HttpServer::Start.
  Status Start();
  int port() const;

  // The loading's progress, 0 to 1. Thread-safe.
  void SetProgress(double fraction) { progress_ = fraction; }

  // Takes over the loaded model and its started engine. REQUIRES: called at most once.
  void SetReady(ServedModel model, std::unique_ptr<Engine> engine);

  // Ends all connections and requests. Idempotent; also what the destructor does.
  void Stop();

 private:
  void AddRoutes();
  HttpResponse Health() const;
  HttpResponse Models() const;
  // Why no request can be served now.
  std::optional<ApiError> NotServing() const;
  void Generate(ApiKind kind, const std::string& body, std::shared_ptr<ResponseWriter> writer);

  const ApiServerOptions options_;
  const int64_t started_;  // seconds since the epoch
  std::atomic<double> progress_ = 0;
  std::atomic<bool> ready_ = false;  // model_ and engine_ are set and stay
  std::atomic<uint64_t> next_id_ = 1;
  // In this order: sessions, which the HTTP server's queue may hold, need the model; engine
  // callbacks and tasks need the HTTP server.
  std::optional<ServedModel> model_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StatusReporter> reporter_;
  std::unique_ptr<TaskThread> tasks_;
};

}  // namespace tandem
