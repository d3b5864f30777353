// A small HTTP/1.1 server on one I/O thread: routes, keep-alive, streamed answers, limits. Knows
// nothing of models or of the API above it; the networking library's headers stay in its .cc files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace tandem {

class HttpConnection;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                     // 0: any free one, see HttpServer::port()
  size_t max_header_bytes = 16 << 10;  // as much as common front servers pass on
  // A 160k-token prompt is about 1 MB of text; escaped as \uXXXX it grows up to six times.
  size_t max_body_bytes = 8 << 20;
  // Streamed bytes that a client may leave unread before it is cut off: some thousand chunks.
  size_t max_buffered_bytes = 1 << 20;
  size_t max_connections = 1024;        // one descriptor each, below the usual limit of a process
  double request_timeout_seconds = 60;  // from the first byte of a request to its last
  double idle_timeout_seconds = 120;    // between two requests of a connection
  double write_timeout_seconds = 30;    // without any progress of a pending write
};

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
};

// Answers one request: Send() once, or StartStream(), Write()..., Finish(). Thread-safe; nothing
// blocks, and calls for a client that has gone are ignored. Dropped without an answer, the
// connection is closed. REQUIRES: does not outlive the server.
class ResponseWriter {
 public:
  explicit ResponseWriter(std::shared_ptr<HttpConnection> connection);
  ~ResponseWriter();
  ResponseWriter(const ResponseWriter&) = delete;
  ResponseWriter& operator=(const ResponseWriter&) = delete;

  void Send(HttpResponse response);
  void StartStream(std::string content_type);
  void Write(std::string data);
  void Finish();

  // `callback` runs on the I/O thread when the client goes before the answer is complete; soon, if
  // it has gone already. Never after the answer is complete.
  void OnDisconnect(std::function<void()> callback);

 private:
  template <typename Action>
  void OnIoThread(Action action);

  std::shared_ptr<HttpConnection> connection_;
  uint64_t exchange_;  // the connection's request that this answers
  std::atomic<bool> complete_ = false;
};

// Invariants: 1. handlers run on the I/O thread and must not block; 2. a slow or stuck client costs
// its own connection only.
class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  // `error_body` makes the JSON body of the server's own errors (400, 404, 405, 413, 431).
  HttpServer(HttpServerOptions options, ErrorBody error_body);
  ~HttpServer();

  // REQUIRES: before Start().
  void Route(std::string method, std::string path, Handler handler);

  // Binds, listens, and starts the I/O thread. Errors: address or port not to be had.
  Status Start();

  // The port that is listened on. REQUIRES: started.
  int port() const;

  // Runs `task` on the I/O thread; after Stop() in the destructor. Thread-safe.
  void Post(std::function<void()> task);

  // Closes all connections (their OnDisconnect callbacks run) and joins the I/O thread. Idempotent.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
