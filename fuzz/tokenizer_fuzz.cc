// tokenizer.json; a text through every tokenizer that loads, there and back.
#include "memory_file.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::FuzzFolder folder;
  folder.Write("tokenizer.json", data, size);
  const auto tokenizer = tandem::Tokenizer::Load(folder.path());
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("Hello, w\xc3\xb6rld 123 <s>", true);
  if (ids.ok()) (void)(*tokenizer)->Decode(*ids, true);
  std::string bytes;
  for (int32_t id = -1; id < 40; ++id) (void)(*tokenizer)->PieceOf(id, false, &bytes);
  return 0;
}
