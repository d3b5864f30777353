#include "text/utf8_stream.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string Decode(const std::string& bytes, size_t part, bool* invalid = nullptr) {
  Utf8Stream stream;
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += part) stream.Push(bytes.substr(i, part), &out);
  if (invalid != nullptr) *invalid = stream.saw_invalid();
  stream.Finish(&out);
  return out;
}

TEST(Utf8Stream, WholeCharactersPassInAnyParts) {
  const std::string text =
      "a\xc3\xbc\xe2\x82\xac\xef\xbf\xbd\xed\x9f\xbf\xf0\x9f\xa6\x8a\xf4\x8f\xbf\xbfz";
  for (size_t part = 1; part <= text.size(); ++part) {
    bool invalid = true;
    EXPECT_EQ(Decode(text, part, &invalid), text);
    EXPECT_FALSE(invalid);  // a real U+FFFD is no error
  }
}

// What is replaced by how many U+FFFD: Unicode 15, section 3.9, and the same as Rust and Python do.
TEST(Utf8Stream, EachMaximalSubpartBecomesOneReplacement) {
  const std::string r = "\xef\xbf\xbd";
  const std::pair<std::string, std::string> cases[] = {
      {"\x80", r},
      {"\xff\xfe", r + r},
      {"\xc0\xaf", r + r},
      {"\xe0\x80\x80", r + r + r},
      {"\xed\xa0\x80", r + r + r},
      {"\xf4\x90\x80\x80", r + r + r + r},
      {"\xf1\x80\x80\xe1\x80\xc2\x62", r + r + r + "b"},
      {"\xe2\x82", r},
      {"\xf0\x9f\xa6\xe2\x82\xac", r + "\xe2\x82\xac"},
  };
  for (const auto& [bytes, text] : cases) {
    for (size_t part = 1; part <= bytes.size(); ++part) EXPECT_EQ(Decode(bytes, part), text);
  }
}

TEST(Utf8Stream, HoldsNothingLongerThanNeeded) {
  Utf8Stream stream;
  std::string out;
  stream.Push("\xf0\x9f\xa6", &out);
  EXPECT_EQ(out, "");
  stream.Push("x", &out);
  EXPECT_EQ(out, "\xef\xbf\xbdx");
}

}  // namespace
}  // namespace tandem
