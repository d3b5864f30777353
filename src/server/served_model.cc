#include "server/served_model.h"

#include <filesystem>
#include <utility>

namespace tandem {
namespace {

// The last part of a path, whether or not it ends with a slash.
std::string LastPart(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace

Result<ServedModel> LoadServedModel(const std::string& folder, const std::string& name,
                                    const std::string& chat_template_file,
                                    bool bytes_if_no_tokenizer) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(folder));
  ServedModel model;
  model.name = name.empty() ? LastPart(folder) : name;
  model.alias = folder;
  ASSIGN_OR_RETURN(model.defaults, LoadGenerationConfig(folder, config));
  std::error_code error;
  if (bytes_if_no_tokenizer && !std::filesystem::exists(folder + "/tokenizer.json", error)) {
    model.tokenizer = Tokenizer::OfBytes();
  } else {
    ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(folder));
  }
  auto chat_template = ChatTemplate::Load(folder, chat_template_file);
  if (chat_template.ok()) {
    model.chat_template = std::move(chat_template).value();
  } else if (!chat_template_file.empty() ||
             chat_template.status().code() != StatusCode::kNotFound) {
    return chat_template.status();
  }
  model.vocab_size = static_cast<int32_t>(config.vocab_size);
  model.context_length = static_cast<int32_t>(config.max_position_embeddings);
  return model;
}

}  // namespace tandem
