// One request's output of `tandem generate`: collects its events, then gives the lines to print.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/api.h"
#include "server/api_request.h"
#include "server/transcript.h"

namespace tandem {

class GenerateOutput {
 public:
  // REQUIRES: `tokenizer` outlives this.
  GenerateOutput(size_t index, const ApiRequest& request, const Tokenizer& tokenizer);

  void Take(const TokenEvent& event);

  bool done() const { return finish_reason_ != FinishReason::kNone; }
  bool failed() const;
  const std::string& error() const { return error_; }
  const std::string& text() const { return transcript_.text(); }

  // REQUIRES: done() and not failed(). Floats are printed so that all their bits can be read back.
  std::string JsonLine() const;
  std::string StatisticsLine() const;

 private:
  size_t index_;
  uint64_t seed_;
  size_t prompt_tokens_;
  bool with_logprobs_;
  bool with_prompt_logprobs_;
  Transcript transcript_;
  std::vector<TokenLogprob> prompt_logprobs_;
  FinishReason finish_reason_ = FinishReason::kNone;
  std::string error_;
  RequestStatistics statistics_;
};

}  // namespace tandem
