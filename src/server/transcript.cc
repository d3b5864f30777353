#include "server/transcript.h"

namespace tandem {
namespace {

int64_t CountCodePoints(const std::string& text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

}  // namespace

Transcript::Transcript(const Tokenizer& tokenizer, bool skip_special_tokens)
    : detokenizer_(&tokenizer, skip_special_tokens) {}

std::string Transcript::Append(const TokenEvent& event) {
  const size_t old_size = text_.size();
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    tokens_.push_back(event.tokens[i]);
    if (i < event.logprobs.size()) logprobs_.push_back({event.logprobs[i], code_points_});
    const bool stops = event.finish_reason == FinishReason::kStop && i + 1 == event.tokens.size();
    if (stops) break;
    const std::string piece = detokenizer_.Push(event.tokens[i]);
    text_ += piece;
    code_points_ += CountCodePoints(piece);
  }
  if (event.finish_reason != FinishReason::kNone) text_ += detokenizer_.Finish();
  return text_.substr(old_size);
}

}  // namespace tandem
