// tokenizer_config.json with its chat templates, and the same bytes as a template of their own.
#include "memory_file.h"
#include "text/chat_template.h"
#include "text/tokenizer_config.h"

namespace {

constexpr std::string_view kMessages =
    R"([{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}])";

void Render(const tandem::Result<std::unique_ptr<tandem::ChatTemplate>>& loaded) {
  if (loaded.ok()) (void)(*loaded)->Render(kMessages, "[]", "{}", true);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::FuzzFolder with_config, plain;
  with_config.Write("tokenizer_config.json", data, size);
  (void)tandem::ReadTokenizerConfig(with_config.path());
  Render(tandem::ChatTemplate::Load(with_config.path(), ""));
  plain.Write("template.jinja", data, size);
  Render(tandem::ChatTemplate::Load(plain.path(), plain.path() + "/template.jinja"));
  return 0;
}
