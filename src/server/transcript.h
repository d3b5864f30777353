// What one request has produced so far, as text: follows its token events through the detokenizer.
// No JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tandem {

// A token's log-probabilities and where its text begins, in code points of the text.
struct PlacedLogprob {
  TokenLogprob logprob;
  int64_t text_offset = 0;
};

// Invariants: 1. the text of a stop token is not part of the text, its id and log-probability are
// of the tokens;
// 2. text() never ends inside a character, and only the last event may append a replacement
// character.
class Transcript {
 public:
  // REQUIRES: `tokenizer` outlives this.
  Transcript(const Tokenizer& tokenizer, bool skip_special_tokens);

  // Takes one event and returns the text that it made available.
  std::string Append(const TokenEvent& event);

  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::string& text() const { return text_; }
  const std::vector<PlacedLogprob>& logprobs() const { return logprobs_; }

 private:
  Detokenizer detokenizer_;
  std::vector<int32_t> tokens_;
  std::string text_;
  int64_t code_points_ = 0;  // of text_
  std::vector<PlacedLogprob> logprobs_;
};

}  // namespace tandem
