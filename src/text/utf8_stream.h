// Bytes that arrive in parts, as UTF-8 text: holds back a character until it is whole. Internal to
// src/text.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// The concatenated output equals decoding all bytes at once with replacement: each longest start of
// a character that cannot go on, and each byte that starts none, becomes one U+FFFD. Copyable.
class Utf8Stream {
 public:
  // Appends to `out` what is decided: all but the at most 3 bytes of an unfinished character.
  void Push(std::string_view bytes, std::string* out);
  // Appends one U+FFFD for an unfinished character. The stream is then empty.
  void Finish(std::string* out);

  // Whether any byte so far can be part of no UTF-8 text, whatever follows.
  bool saw_invalid() const { return saw_invalid_; }

 private:
  void PushByte(unsigned char byte, std::string* out);
  void Replace(std::string* out);

  std::string held_;       // the start of a character
  int missing_ = 0;        // bytes to its end
  unsigned char low_ = 0;  // range of its next byte
  unsigned char high_ = 0;
  bool saw_invalid_ = false;
};

}  // namespace tandem
