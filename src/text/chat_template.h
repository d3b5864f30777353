// A model's chat template: messages to prompt text, with the meaning it has in Hugging Face
// transformers. It knows no tokens and no API types: everything comes as JSON text.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct TandemTemplate;

namespace tandem {

// Immutable after Load; Render is thread-safe.
class ChatTemplate {
 public:
  // The template of, in this order: `template_file` if not empty, the folder's chat_template.jinja,
  // "chat_template" of its tokenizer_config.json. NotFound if there is none; InvalidArgument, with
  // file and line, if it does not compile.
  static Result<std::unique_ptr<ChatTemplate>> Load(const std::string& model_folder,
                                                    const std::string& template_file = "");

  // `messages`: JSON array. `tools`: JSON array, or empty or "null" for none. `arguments`: JSON
  // object of further variables, or empty; they win over the special tokens' names, and must not
  // name messages, tools or add_generation_prompt. JSON keeps its key order. The result usually
  // begins with BOS: encode it with add_special_tokens = false. InvalidArgument, with the
  // template's own words if it raised an exception, for wrong JSON, an error inside the template,
  // or exceeded limits (10 million instructions, 64 MiB of output, 256 MiB of memory).
  Result<std::string> Render(std::string_view messages, std::string_view tools,
                             std::string_view arguments, bool add_generation_prompt) const;

 private:
  struct Free {
    void operator()(TandemTemplate* chat_template) const;
  };
  using Handle = std::unique_ptr<TandemTemplate, Free>;

  ChatTemplate() = default;
  static Result<Handle> Compile(const std::string& where, const std::string& source,
                                const std::string& variables);

  Handle default_;
  Handle tool_use_;  // null: `default_` serves requests with tools too
};

}  // namespace tandem
