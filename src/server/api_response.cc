#include "server/api_response.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace tandem {
namespace {

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int64_t SecondsSinceEpoch() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

// A token alone as text; bytes that are no whole character show as replacement characters.
std::string TokenText(int32_t token, const Tokenizer& tokenizer) {
  return tokenizer.Decode(std::span<const int32_t>(&token, 1), false);
}

// A token's own bytes; those of its text where the decoder knows no others.
std::string TokenBytes(int32_t token, const Tokenizer& tokenizer) {
  std::string bytes;
  const Tokenizer::Piece piece = tokenizer.PieceOf(token, false, &bytes);
  const bool own = piece == Tokenizer::Piece::kBytes || piece == Tokenizer::Piece::kFallbackByte;
  return own ? bytes : TokenText(token, tokenizer);
}

// The completions API has no place for bytes: a part of a character is spelt out, so that it has
// its own key.
std::string CompletionToken(int32_t token, const Tokenizer& tokenizer) {
  const std::string text = TokenText(token, tokenizer);
  const std::string bytes = TokenBytes(token, tokenizer);
  if (bytes == text) return text;
  std::string spelt = "bytes:";
  for (const char c : bytes) spelt += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return spelt;
}

Json ChatToken(int32_t token, float logprob, const Tokenizer& tokenizer) {
  Json bytes = Json::array();
  for (const char c : TokenBytes(token, tokenizer)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", TokenText(token, tokenizer)},
          {"logprob", ShortestDouble(logprob)},
          {"bytes", std::move(bytes)}};
}

Json CompletionLogprobs(std::span<const PlacedLogprob> entries, const Tokenizer& tokenizer) {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const PlacedLogprob& entry : entries) {
    const std::string text = CompletionToken(entry.logprob.token, tokenizer);
    Json top = Json::object();
    // Tokens that look alike share a key: the best one has it.
    for (const auto& [token, logprob] : entry.logprob.top) {
      top.emplace(CompletionToken(token, tokenizer), ShortestDouble(logprob));
    }
    top.emplace(text, ShortestDouble(entry.logprob.logprob));
    tokens.push_back(text);
    values.push_back(ShortestDouble(entry.logprob.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(entry.text_offset);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

std::string ErrorJson(const ApiError& error) {
  const Json param = error.param.empty() ? Json(nullptr) : Json(error.param);
  const Json code = error.code.empty() ? Json(nullptr) : Json(error.code);
  return Dump(
      {{"error",
        {{"message", error.message}, {"type", error.type}, {"param", param}, {"code", code}}}});
}

ApiError MakeApiError(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  if (status >= 500) error.type = "server_error";
  return error;
}

const char* FinishReasonName(FinishReason reason) {
  CHECK(reason == FinishReason::kStop || reason == FinishReason::kLength);
  return reason == FinishReason::kStop ? "stop" : "length";
}

double ShortestDouble(float value) {
  char digits[32];  // the longest shortest form of a float has 15 characters
  const auto written = std::to_chars(digits, digits + sizeof(digits), value);
  double result = value;
  std::from_chars(digits, written.ptr, result);
  return result;
}

Json ChatLogprobsJson(std::span<const PlacedLogprob> entries, const Tokenizer& tokenizer) {
  Json items = Json::array();
  for (const PlacedLogprob& entry : entries) {
    Json item = ChatToken(entry.logprob.token, entry.logprob.logprob, tokenizer);
    Json top = Json::array();
    for (const auto& [token, logprob] : entry.logprob.top) {
      top.push_back(ChatToken(token, logprob, tokenizer));
    }
    item["top_logprobs"] = std::move(top);
    items.push_back(std::move(item));
  }
  return items;
}

ApiResponse::ApiResponse(const ApiRequest& request, const ServedModel& model)
    : model_(model),
      chat_(request.kind == ApiKind::kChat),
      with_logprobs_(request.generation.logprobs >= 0),
      include_usage_(request.include_usage),
      seed_(request.generation.sampling.seed),
      prompt_tokens_(static_cast<int64_t>(request.generation.prompt.size())),
      created_(SecondsSinceEpoch()),
      id_(fmt::format("{}-{:x}{:08x}", chat_ ? "chatcmpl" : "cmpl", created_,
                      request.generation.id)) {}

Json ApiResponse::Head(bool chunk) const {
  const char* object = !chat_  ? "text_completion"
                       : chunk ? "chat.completion.chunk"
                               : "chat.completion";
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.name},
          {"seed", seed_}};
}

Json ApiResponse::Usage(const Transcript& transcript, const RequestStatistics& statistics) const {
  const int64_t completion = static_cast<int64_t>(transcript.tokens().size());
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion},
          {"total_tokens", prompt_tokens_ + completion},
          {"speculation",
           {{"drafted", statistics.drafted},
            {"accepted", statistics.accepted},
            {"accept_length", statistics.accept_length()}}}};
}

Json ApiResponse::Logprobs(std::span<const PlacedLogprob> entries) const {
  if (!with_logprobs_) return nullptr;
  if (!chat_) return CompletionLogprobs(entries, *model_.tokenizer);
  return {{"content", ChatLogprobsJson(entries, *model_.tokenizer)}};
}

std::string ApiResponse::Whole(const Transcript& transcript, const TokenEvent& last) const {
  Json choice = {{"index", 0},
                 {"logprobs", Logprobs(transcript.logprobs())},
                 {"finish_reason", FinishReasonName(last.finish_reason)}};
  if (chat_) {
    choice["message"] = {{"role", "assistant"}, {"content", transcript.text()}};
  } else {
    choice["text"] = transcript.text();
  }
  Json response = Head(false);
  response["choices"] = Json::array({std::move(choice)});
  response["usage"] = Usage(transcript, last.statistics);
  return Dump(response);
}

std::string ApiResponse::Chunk(Json choice) const {
  Json chunk = Head(true);
  choice["index"] = 0;
  chunk["choices"] = Json::array({std::move(choice)});
  if (include_usage_) chunk["usage"] = nullptr;
  return Dump(chunk);
}

std::string ApiResponse::RoleChunk() const {
  return Chunk({{"delta", {{"role", "assistant"}, {"content", ""}}},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}});
}

std::string ApiResponse::TextChunk(const std::string& text,
                                   std::span<const PlacedLogprob> entries) const {
  Json choice = {{"logprobs", Logprobs(entries)}, {"finish_reason", nullptr}};
  if (chat_) {
    choice["delta"] = {{"content", text}};
  } else {
    choice["text"] = text;
  }
  return Chunk(std::move(choice));
}

std::string ApiResponse::FinishChunk(FinishReason reason) const {
  Json choice = {{"logprobs", nullptr}, {"finish_reason", FinishReasonName(reason)}};
  if (chat_) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
  }
  return Chunk(std::move(choice));
}

std::string ApiResponse::UsageChunk(const Transcript& transcript, const TokenEvent& last) const {
  Json chunk = Head(true);
  chunk["choices"] = Json::array();
  chunk["usage"] = Usage(transcript, last.statistics);
  return Dump(chunk);
}

}  // namespace tandem
