#include "text/detokenizer.h"

namespace tandem {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> context)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {
  for (const int32_t id : context) Push(id);
}

std::string Detokenizer::Push(int32_t id) {
  std::string bytes;
  switch (tokenizer_->PieceOf(id, skip_special_tokens_, &bytes)) {
    case Tokenizer::Piece::kNothing:
      return "";
    case Tokenizer::Piece::kBytes: {
      std::string text;
      utf8_.Push(bytes, &text);
      return text;
    }
    case Tokenizer::Piece::kFallbackByte:
      return PushFallbackByte(id, bytes);
    case Tokenizer::Piece::kText:
      break;
  }
  run_ = Utf8Stream();
  pending_.push_back(id);
  return Advance();
}

std::string Detokenizer::PushFallbackByte(int32_t id, const std::string& byte) {
  // In a run that is already invalid every byte prints one U+FFFD, whatever it is.
  if (run_.saw_invalid()) {
    context_ = {id};
    return "\xef\xbf\xbd";
  }
  std::string ignored;
  run_.Push(byte, &ignored);
  pending_.push_back(id);
  return run_.saw_invalid() ? Advance() : "";
}

std::string Detokenizer::Advance() {
  const size_t known = tokenizer_->Decode(context_, skip_special_tokens_).size();
  std::vector<int32_t> window = context_;
  window.insert(window.end(), pending_.begin(), pending_.end());
  std::string text = tokenizer_->Decode(window, skip_special_tokens_);
  context_ = {window.back()};
  pending_.clear();
  return text.size() > known ? text.substr(known) : "";
}

std::string Detokenizer::Finish() {
  std::string text;
  if (!pending_.empty()) text = Advance();
  utf8_.Finish(&text);
  return text;
}

}  // namespace tandem
