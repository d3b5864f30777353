#include "text/chat_template.h"

#include "base/text_file.h"
#include "text/ffi/tandem_text.h"
#include "text/ffi_sink.h"
#include "text/tokenizer_config.h"

namespace tandem {
namespace {

struct Sources {
  std::string where;  // file and field, for error messages
  std::string default_source;
  std::string tool_use_source;  // empty: none
};

Result<Sources> ChooseFromConfig(const TokenizerConfig& config) {
  Sources sources;
  sources.where = config.path + ": field \"chat_template\"";
  for (const NamedTemplate& entry : config.chat_templates) {
    if (entry.name == "default") sources.default_source = entry.source;
    if (entry.name == "tool_use") sources.tool_use_source = entry.source;
  }
  if (config.chat_templates.empty()) return NotFound(sources.where + " is missing");
  if (sources.default_source.empty()) {
    return InvalidArgument(sources.where + " has no template named \"default\"");
  }
  return sources;
}

Result<Sources> ChooseSources(const std::string& model_folder, const std::string& template_file,
                              const TokenizerConfig& config) {
  const std::string path =
      template_file.empty() ? model_folder + "/chat_template.jinja" : template_file;
  Result<std::string> text = ReadTextFile(path, kMaxTemplateBytes);
  if (text.ok()) return Sources{path, std::move(text).value(), ""};
  const bool optional_file = template_file.empty();
  if (!optional_file || text.status().code() != StatusCode::kNotFound) return text.status();
  return ChooseFromConfig(config);
}

}  // namespace

void ChatTemplate::Free::operator()(TandemTemplate* chat_template) const {
  tandem_template_free(chat_template);
}

Result<ChatTemplate::Handle> ChatTemplate::Compile(const std::string& where,
                                                   const std::string& source,
                                                   const std::string& variables) {
  std::string error;
  Handle handle(tandem_template_compile(source.data(), source.size(), variables.data(),
                                        variables.size(), AppendText, &error));
  if (handle == nullptr) return InvalidArgument(where + ": " + error);
  return handle;
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& model_folder,
                                                         const std::string& template_file) {
  ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(model_folder));
  ASSIGN_OR_RETURN(const Sources sources, ChooseSources(model_folder, template_file, config));
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  ASSIGN_OR_RETURN(result->default_,
                   Compile(sources.where, sources.default_source, config.template_variables));
  if (!sources.tool_use_source.empty()) {
    ASSIGN_OR_RETURN(result->tool_use_,
                     Compile(sources.where, sources.tool_use_source, config.template_variables));
  }
  return result;
}

Result<std::string> ChatTemplate::Render(std::string_view messages, std::string_view tools,
                                         std::string_view arguments,
                                         bool add_generation_prompt) const {
  const bool has_tools = !tools.empty() && tools != "null";
  const Handle& handle = has_tools && tool_use_ != nullptr ? tool_use_ : default_;
  std::string text;
  std::string error;
  if (tandem_template_render(handle.get(), messages.data(), messages.size(), tools.data(),
                             tools.size(), arguments.data(), arguments.size(),
                             add_generation_prompt, AppendText, &text, AppendText, &error) != 0) {
    return InvalidArgument("chat template: " + error);
  }
  return text;
}

}  // namespace tandem
