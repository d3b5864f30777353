// What the API needs to know of the one model that is served: its text side, its defaults and its
// limits. Nothing computes here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "model/config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem {

// Immutable after loading; used by several threads at once.
struct ServedModel {
  std::string name;   // as clients call it
  std::string alias;  // also accepted: the folder as it was given
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<const ChatTemplate> chat_template;  // null: the model has none, and no chat
  GenerationDefaults defaults;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // prompt and generated tokens together
};

// Reads the text files of `folder`. The context length is the model's: the engine's may be shorter,
// and is then the caller's to fill in. `name`: empty means the folder's last part;
// `chat_template_file`: empty means the model's own; without a tokenizer.json,
// `bytes_if_no_tokenizer` makes every byte a token. Errors: a file that is missing or wrong.
Result<ServedModel> LoadServedModel(const std::string& folder, const std::string& name,
                                    const std::string& chat_template_file,
                                    bool bytes_if_no_tokenizer = false);

}  // namespace tandem
