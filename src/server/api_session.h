// One request between the engine and its client: turns token events into the parts of an HTTP
// answer.
#pragma once

#include <memory>
#include <string>

#include "server/api_response.h"
#include "server/http_server.h"

namespace tandem {

// Used on the I/O thread only, after construction.
class ApiSession {
 public:
  // REQUIRES: `model` outlives this.
  ApiSession(const ApiRequest& request, const ServedModel& model,
             std::shared_ptr<ResponseWriter> writer);

  // Takes the request's events in order; the last one completes the answer.
  void OnEvent(const TokenEvent& event);

 private:
  void Stream(const TokenEvent& event);
  void Fail(const TokenEvent& event);
  void WriteSse(const std::string& data);

  const ApiRequest request_;
  const ApiResponse response_;
  Transcript transcript_;
  std::shared_ptr<ResponseWriter> writer_;
  bool started_ = false;  // the stream
};

}  // namespace tandem
