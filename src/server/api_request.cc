#include "server/api_request.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "server/prompt.h"
#include "server/unsupported_fields.h"

namespace tandem {
namespace {

constexpr int64_t kNoLimit = INT64_MAX;
// What the completions API generates when nothing is said.
constexpr int32_t kCompletionMaxTokens = 16;
// Above this the distribution is flat to float precision for any logits a model gives.
constexpr float kMaxTemperature = 1000;

void ReadModelName(const ServedModel& model, JsonFields& fields) {
  const auto name = fields.String("model");
  if (!name || *name == model.name || *name == model.alias) return;
  fields.Refuse({404, fmt::format("the model '{}' is not served here; '{}' is", *name, model.name),
                 "invalid_request_error", "model", "model_not_found"});
}

void ReadSampling(const ServedModel& model, JsonFields& fields, GenerationRequest* generation) {
  const GenerationDefaults& defaults = model.defaults;
  SamplingParams& sampling = generation->sampling;
  sampling.temperature = fields.Number("temperature", 0, kMaxTemperature)
                             .value_or(defaults.temperature.value_or(1.0f));
  sampling.top_p = fields.Number("top_p", 0, 1).value_or(defaults.top_p.value_or(1.0f));
  if (sampling.top_p == 0) fields.Refuse("top_p", "top_p must be above 0");
  sampling.min_p = fields.Number("min_p", 0, 1).value_or(defaults.min_p.value_or(0.0f));
  sampling.top_k = static_cast<int32_t>(
      fields.Integer("top_k", -1, INT32_MAX).value_or(defaults.top_k.value_or(0)));
  if (sampling.top_k < 0) sampling.top_k = 0;
  const auto seed = fields.Integer("seed", 0, kNoLimit);
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : DrawSeed();
}

void ReadStopTokens(const ServedModel& model, JsonFields& fields, GenerationRequest* generation) {
  if (!fields.Bool("ignore_eos").value_or(false)) {
    generation->stop_token_ids = model.defaults.eos_token_ids;
  }
  const Json* ids = fields.Find("stop_token_ids");
  if (ids == nullptr) return;
  const auto read = ReadTokenIds(*ids, model.vocab_size);
  if (!read.ok())
    return fields.Refuse("stop_token_ids", "stop_token_ids: " + read.status().message());
  generation->stop_token_ids.insert(generation->stop_token_ids.end(), read->begin(), read->end());
}

void ReadLogprobs(ApiKind kind, JsonFields& fields, GenerationRequest* generation) {
  if (kind != ApiKind::kChat) {
    generation->logprobs =
        static_cast<int32_t>(fields.Integer("logprobs", 0, kMaxTopLogprobs).value_or(-1));
    if (kind == ApiKind::kLine) {
      generation->prompt_logprobs =
          static_cast<int32_t>(fields.Integer("prompt_logprobs", 0, kMaxTopLogprobs).value_or(-1));
    }
    return;
  }
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (wanted) generation->logprobs = static_cast<int32_t>(top.value_or(0));
  if (!wanted && top.value_or(0) > 0) {
    fields.Refuse("top_logprobs", "top_logprobs needs logprobs to be true");
  }
}

void ReadStream(JsonFields& fields, ApiRequest* request) {
  request->stream = fields.Bool("stream").value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields.Refuse("stream_options", "stream_options must be an object");
  }
  JsonFields inner(*options);
  request->include_usage = inner.Bool("include_usage").value_or(false);
  if (inner.error()) fields.Refuse(*inner.error());
}

// REQUIRES: the prompt is read.
void ReadMaxTokens(const ServedModel& model, bool chat, JsonFields& fields,
                   GenerationRequest* generation) {
  const int32_t prompt = static_cast<int32_t>(generation->prompt.size());
  auto max_tokens = fields.Integer("max_completion_tokens", 1, INT32_MAX);
  if (const auto old_name = fields.Integer("max_tokens", 1, INT32_MAX); !max_tokens) {
    max_tokens = old_name;
  }
  const int32_t left = model.context_length - prompt;
  if (fields.error()) return;
  if (prompt == 0)
    return fields.Refuse("prompt", "the prompt is empty: it needs at least one token");
  if (left < 1) {
    return fields.Refuse(
        {400,
         fmt::format("the prompt has {} tokens; this model's context holds {}, and "
                     "at least one of them must be left for the answer",
                     prompt, model.context_length),
         "invalid_request_error", chat ? "messages" : "prompt", "context_length_exceeded"});
  }
  const int32_t by_default = chat ? left : std::min(left, kCompletionMaxTokens);
  generation->max_tokens =
      static_cast<int32_t>(std::min<int64_t>(left, max_tokens.value_or(by_default)));
  const auto min_tokens = fields.Integer("min_tokens", 0, INT32_MAX).value_or(0);
  if (max_tokens && min_tokens > *max_tokens) {
    fields.Refuse("min_tokens",
                  fmt::format("min_tokens {} is more than max_tokens {}", min_tokens, *max_tokens));
  }
  // Where the context ends first, it ends.
  generation->min_tokens = static_cast<int32_t>(std::min<int64_t>(min_tokens, left));
  generation->max_tokens = std::max(generation->max_tokens, generation->min_tokens);
}

}  // namespace

uint64_t DrawSeed() {
  thread_local std::random_device device;
  const uint64_t high = device();
  return ((high << 32) | device()) >> 11;
}

std::optional<ApiError> ReadApiRequest(const Json& body, ApiKind kind, const ServedModel& model,
                                       ApiRequest* request) {
  if (!body.is_object()) {
    ApiError error;
    error.message = fmt::format("the body must be a JSON object, not {}", JsonKind(body));
    return error;
  }
  JsonFields fields(body);
  GenerationRequest& generation = request->generation;
  request->kind = kind;
  ReadModelName(model, fields);
  RefuseUnsupported(kind, fields);
  ReadSampling(model, fields, &generation);
  ReadStopTokens(model, fields, &generation);
  ReadLogprobs(kind, fields, &generation);
  if (kind != ApiKind::kLine) ReadStream(fields, request);
  request->skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  if (const auto rank = fields.Integer("data_parallel_rank", 0, INT32_MAX)) {
    generation.data_parallel_rank = static_cast<int32_t>(*rank);
  }
  if (kind == ApiKind::kLine) {
    generation.arrival_step = fields.Integer("arrival_step", 0, kNoLimit).value_or(0);
  }
  if (fields.error()) return fields.error();  // before the costly part
  generation.prompt = ReadPrompt(kind, model, fields);
  ReadMaxTokens(model, fields.Find("messages") != nullptr, fields, &generation);
  return fields.error();
}

}  // namespace tandem
