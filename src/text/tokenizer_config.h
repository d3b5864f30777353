// What tokenizer_config.json says about special tokens and chat templates. Internal to src/text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

struct NamedTemplate {
  std::string name;
  std::string source;
};

struct TokenizerConfig {
  std::string path;  // for error messages
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::string bos_token;  // empty: none
  std::string eos_token;
  std::string template_variables;             // JSON object: bos_token, eos_token, ... as texts
  std::vector<NamedTemplate> chat_templates;  // a single one is named "default"
};

// A folder without the file gives an empty config; a broken one is InvalidArgument with file and
// field.
Result<TokenizerConfig> ReadTokenizerConfig(const std::string& model_folder);

// What such files may have at most. Parsed, each costs up to some 16 times its size. The longest
// that we know: tokenizer.json 35 MB (Gemma), tokenizer_config.json 1 MB, templates 40 kB.
inline constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;
inline constexpr size_t kMaxTokenizerConfigBytes = size_t{4} << 20;
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

}  // namespace tandem
