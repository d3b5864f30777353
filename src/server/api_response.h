// The API's answers as JSON text: whole responses, stream chunks, errors. Knows neither HTTP nor
// the engine's threads.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "server/api_request.h"
#include "server/transcript.h"

namespace tandem {

std::string ErrorJson(const ApiError& error);

// "invalid_request_error" for 4xx, "server_error" for 5xx.
ApiError MakeApiError(int status, std::string message);

// "stop" or "length". REQUIRES: one of these two.
const char* FinishReasonName(FinishReason reason);

// The double whose shortest decimal form is that of `value`: JSON then shows few digits, and
// reading them as a float gives all 32 bits back.
double ShortestDouble(float value);

// {token, logprob, top: ...} in the chat API's form, one item per entry.
Json ChatLogprobsJson(std::span<const PlacedLogprob> entries, const Tokenizer& tokenizer);

// One request's answers. Immutable.
class ApiResponse {
 public:
  // REQUIRES: `model` outlives this. `id` is the engine's.
  ApiResponse(const ApiRequest& request, const ServedModel& model);

  std::string Whole(const Transcript& transcript, const TokenEvent& last) const;

  // The chunks of a stream, in this order; the first is the chat API's only.
  std::string RoleChunk() const;
  std::string TextChunk(const std::string& text, std::span<const PlacedLogprob> entries) const;
  std::string FinishChunk(FinishReason reason) const;
  std::string UsageChunk(const Transcript& transcript, const TokenEvent& last) const;

 private:
  Json Head(bool chunk) const;
  Json Usage(const Transcript& transcript, const RequestStatistics& statistics) const;
  Json Logprobs(std::span<const PlacedLogprob> entries) const;
  std::string Chunk(Json choice) const;

  const ServedModel& model_;
  const bool chat_;
  const bool with_logprobs_;
  const bool include_usage_;
  const uint64_t seed_;
  const int64_t prompt_tokens_;
  const int64_t created_;
  std::string id_;
};

}  // namespace tandem
