// The prompt's part of a request: text, token ids or chat messages become token ids.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/status.h"
#include "server/api_request.h"

namespace tandem {

// An array of token ids, each in [0, vocab_size).
Result<std::vector<int32_t>> ReadTokenIds(const Json& value, int32_t vocab_size);

// The prompt's token ids; empty with fields.error() set when something is wrong with it.
std::vector<int32_t> ReadPrompt(ApiKind kind, const ServedModel& model, JsonFields& fields);

}  // namespace tandem
