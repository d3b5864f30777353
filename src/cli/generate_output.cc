#include "cli/generate_output.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/api_response.h"

namespace tandem {
namespace {

// {"token": id, "logprob": x, "top": [[id, x], ...]}
Json LogprobJson(const TokenLogprob& logprob) {
  Json top = Json::array();
  for (const auto& [token, value] : logprob.top) {
    top.push_back(Json::array({token, ShortestDouble(value)}));
  }
  return {{"token", logprob.token},
          {"logprob", ShortestDouble(logprob.logprob)},
          {"top", std::move(top)}};
}

}  // namespace

GenerateOutput::GenerateOutput(size_t index, const ApiRequest& request, const Tokenizer& tokenizer)
    : index_(index),
      seed_(request.generation.sampling.seed),
      prompt_tokens_(request.generation.prompt.size()),
      with_logprobs_(request.generation.logprobs >= 0),
      with_prompt_logprobs_(request.generation.prompt_logprobs >= 0),
      transcript_(tokenizer, request.skip_special_tokens) {}

void GenerateOutput::Take(const TokenEvent& event) {
  transcript_.Append(event);
  prompt_logprobs_.insert(prompt_logprobs_.end(), event.prompt_logprobs.begin(),
                          event.prompt_logprobs.end());
  if (event.finish_reason == FinishReason::kNone) return;
  finish_reason_ = event.finish_reason;
  error_ = event.error;
  if (event.finish_reason == FinishReason::kCancelled) error_ = "cancelled";
  if (event.finish_reason == FinishReason::kTimeout) error_ = "ran out of time";
  statistics_ = event.statistics;
}

bool GenerateOutput::failed() const {
  return finish_reason_ == FinishReason::kCancelled || finish_reason_ == FinishReason::kTimeout ||
         finish_reason_ == FinishReason::kError;
}

std::string GenerateOutput::JsonLine() const {
  Json line = {{"index", index_},
               {"token_ids", transcript_.tokens()},
               {"text", transcript_.text()},
               {"finish_reason", FinishReasonName(finish_reason_)},
               {"logprobs", nullptr},
               {"seed", seed_},
               {"prompt_tokens", prompt_tokens_},
               {"steps", statistics_.steps},
               {"verify_steps", statistics_.verify_steps},
               {"drafted", statistics_.drafted},
               {"accepted", statistics_.accepted},
               {"accept_length", statistics_.accept_length()},
               {"accepted_per_position", statistics_.accepted_per_position}};
  if (with_logprobs_) {
    Json items = Json::array();
    for (const PlacedLogprob& entry : transcript_.logprobs()) {
      items.push_back(LogprobJson(entry.logprob));
    }
    line["logprobs"] = std::move(items);
  }
  if (with_prompt_logprobs_) {
    Json items = Json::array();
    for (const TokenLogprob& logprob : prompt_logprobs_) items.push_back(LogprobJson(logprob));
    line["prompt_logprobs"] = std::move(items);
  }
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string GenerateOutput::StatisticsLine() const {
  return fmt::format(
      "[{}] {} prompt tokens, {} generated ({}), {} steps, {} of {} drafts accepted, accept length "
      "{:.2f}, seed {}",
      index_, prompt_tokens_, transcript_.tokens().size(), FinishReasonName(finish_reason_),
      statistics_.steps, statistics_.accepted, statistics_.drafted, statistics_.accept_length(),
      seed_);
}

}  // namespace tandem
