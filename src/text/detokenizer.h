// Token ids that arrive one by one, as text that can be sent at once. Knows nothing of stop
// strings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace tandem {

// Invariants:
//  1. All of Push's results and Finish's together equal Tokenizer::Decode of all ids.
//  2. Every result is valid UTF-8 by itself; a character is sent when its last byte came.
//  3. Bytes that cannot become a character are sent as U+FFFD by the push that shows it. Only
//  tokenizers with
//     byte fallback hold more than one character: a run of fallback bytes until it ends or is
//     invalid, since one bad byte turns the whole run into U+FFFD.
//  4. A push costs the length of its token (a run of fallback bytes: once more, at its end).
// Copyable (a copy continues on its own); one thread at a time.
class Detokenizer {
 public:
  // `tokenizer` outlives this. `context`: ids whose text was sent before, for example the prompt's
  // last ones; a decoder that strips a leading space then does not strip it from the first new
  // token. What the context leaves unfinished comes with the first results.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens,
              std::span<const int32_t> context = {});

  // The text that `id` completes, often empty. Ids that are no tokens add nothing.
  std::string Push(int32_t id);
  // What was held back. No push may follow.
  std::string Finish();

 private:
  std::string PushFallbackByte(int32_t id, const std::string& byte);
  std::string Advance();

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  Utf8Stream utf8_;  // of kBytes pieces

  // The rest is for the other kinds of pieces. The text of `pending_` is what Decode(context_ +
  // pending_) has beyond Decode(context_); one token of context is enough for every decoder.
  std::vector<int32_t> context_;
  std::vector<int32_t> pending_;
  Utf8Stream run_;  // the current run of fallback bytes
};

}  // namespace tandem
