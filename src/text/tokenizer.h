// Text to token ids and back, as Hugging Face's fast tokenizers do it. Not for streams of new
// tokens: see text/detokenizer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct TandemTokenizer;

namespace tandem {

// Immutable after Load; all const methods are thread-safe.
class Tokenizer {
 public:
  // What one id is to the decoder; for the Detokenizer.
  enum class Piece {
    kNothing,       // no token, or special and skipped
    kBytes,         // exactly these bytes
    kFallbackByte,  // one byte of a run that is decoded as a whole
    kText,          // text that may depend on the token before it
  };

  // Reads tokenizer.json and, if there, tokenizer_config.json. Errors name the file and the field.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_folder);
  // Token b is byte b, for models without a tokenizer (made-up weights).
  static std::unique_ptr<Tokenizer> OfBytes();
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Special tokens inside `text` become their ids. With `add_special_tokens` the config's BOS and
  // EOS rule applies, but text that begins with BOS gets no second one; a rendered chat template is
  // encoded without. InvalidArgument if `text` is not UTF-8.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const;

  // Always valid UTF-8: bytes that are none become U+FFFD. Ids that are no tokens are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // `bytes` is filled for kBytes and kFallbackByte, and emptied otherwise.
  Piece PieceOf(int32_t id, bool skip_special_tokens, std::string* bytes) const;

  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  std::optional<int32_t> IdOf(std::string_view token) const;
  // As the vocabulary spells it (byte-level tokens in its alphabet); nothing if `id` is no token.
  std::optional<std::string> TokenOf(int32_t id) const;
  // Largest id + 1. A model's vocab_size may be larger (padding), never smaller.
  int32_t id_count() const;

 private:
  struct Free {
    void operator()(TandemTokenizer* tokenizer) const;
  };

  Tokenizer() = default;
  Result<std::vector<int32_t>> EncodeRaw(std::string_view text, bool post_process) const;

  std::unique_ptr<TandemTokenizer, Free> tokenizer_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::string bos_token_;
  // The config's keys replace the file's post-processor, as Hugging Face's Llama classes do;
  // without keys the post-processor runs.
  bool post_process_ = false;
  bool add_bos_ = false;
  bool add_eos_ = false;
};

}  // namespace tandem
