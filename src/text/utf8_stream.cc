#include "text/utf8_stream.h"

namespace tandem {

void Utf8Stream::Push(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) PushByte(static_cast<unsigned char>(byte), out);
}

void Utf8Stream::PushByte(unsigned char byte, std::string* out) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      held_.push_back(static_cast<char>(byte));
      low_ = 0x80;
      high_ = 0xbf;
      if (--missing_ == 0) {
        out->append(held_);
        held_.clear();
      }
      return;
    }
    Replace(out);
  }
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  if (byte < 0xc2 || byte > 0xf4) {
    Replace(out);
    return;
  }
  // The second byte's range keeps out overlong forms, surrogates and code points above U+10FFFF
  // (Unicode, table 3-7).
  held_.assign(1, static_cast<char>(byte));
  missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
}

void Utf8Stream::Replace(std::string* out) {
  out->append("\xef\xbf\xbd");
  held_.clear();
  missing_ = 0;
  saw_invalid_ = true;
}

void Utf8Stream::Finish(std::string* out) {
  if (missing_ > 0) Replace(out);
  *this = Utf8Stream();
}

}  // namespace tandem
