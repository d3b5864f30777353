// From a client's JSON to a request for the engine: fields, defaults, prompt. One reader for both
// endpoints and for the lines of `tandem generate`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "engine/api.h"
#include "server/json_fields.h"
#include "server/served_model.h"

namespace tandem {

enum class ApiKind {
  kCompletion,  // POST /v1/completions
  kChat,        // POST /v1/chat/completions
  kLine,        // a line of `tandem generate`: prompt, prompt_token_ids or messages
};

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  bool stream = false;
  bool include_usage = false;
  bool skip_special_tokens = true;
  GenerationRequest generation;  // but for its id
};

// Draws a seed that every JSON reader returns unchanged: below 2^53. Thread-safe.
uint64_t DrawSeed();

// Reads `body` into `request`. Unset sampling fields come from the model's generation_config.json,
// then from the API's defaults. Returns the error of the first field that is wrong, or that would
// change the answer in a way that is not offered. Thread-safe; may take milliseconds (tokenizer,
// template): not for the I/O thread.
std::optional<ApiError> ReadApiRequest(const Json& body, ApiKind kind, const ServedModel& model,
                                       ApiRequest* request);

}  // namespace tandem
