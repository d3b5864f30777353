#include "text/tokenizer_config.h"

#include <nlohmann/json.hpp>

#include "base/text_file.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

Status FieldError(const TokenizerConfig& config, const std::string& field, const char* problem) {
  return InvalidArgument(config.path + ": field \"" + field + "\" " + problem);
}

// A token is a string or an object with "content" (AddedToken); null and absence mean none.
Status ReadToken(const TokenizerConfig& config, const Json& json, const std::string& field,
                 std::string* token) {
  const auto found = json.find(field);
  if (found == json.end() || found->is_null()) return {};
  const Json* text = &*found;
  if (text->is_object()) {
    if (!text->contains("content")) return FieldError(config, field, "has no \"content\"");
    text = &text->at("content");
  }
  if (!text->is_string()) return FieldError(config, field, "is not a string");
  *token = text->get<std::string>();
  return {};
}

Status ReadFlag(const TokenizerConfig& config, const Json& json, const std::string& field,
                std::optional<bool>* flag) {
  const auto found = json.find(field);
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_boolean()) return FieldError(config, field, "is not true or false");
  *flag = found->get<bool>();
  return {};
}

Status ReadTemplateVariables(const Json& json, TokenizerConfig* config) {
  Json variables = Json::object();
  for (const char* field : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
    std::string token;
    RETURN_IF_ERROR(ReadToken(*config, json, field, &token));
    if (!token.empty()) variables[field] = token;
  }
  config->bos_token = variables.value("bos_token", "");
  config->eos_token = variables.value("eos_token", "");
  config->template_variables = variables.dump();
  return {};
}

Status ReadChatTemplates(const Json& json, TokenizerConfig* config) {
  const auto found = json.find("chat_template");
  if (found == json.end() || found->is_null()) return {};
  if (found->is_string()) {
    config->chat_templates.push_back({"default", found->get<std::string>()});
    return {};
  }
  if (!found->is_array()) return FieldError(*config, "chat_template", "is no string and no list");
  for (const Json& entry : *found) {
    const bool well_formed = entry.is_object() && entry.contains("name") &&
                             entry["name"].is_string() && entry.contains("template") &&
                             entry["template"].is_string();
    if (!well_formed) {
      return FieldError(*config, "chat_template", "has an entry without a name and a template");
    }
    config->chat_templates.push_back(
        {entry["name"].get<std::string>(), entry["template"].get<std::string>()});
  }
  return {};
}

}  // namespace

Result<TokenizerConfig> ReadTokenizerConfig(const std::string& model_folder) {
  TokenizerConfig config;
  config.path = model_folder + "/tokenizer_config.json";
  config.template_variables = "{}";
  Result<std::string> text = ReadTextFile(config.path, kMaxTokenizerConfigBytes);
  if (text.status().code() == StatusCode::kNotFound) return config;
  RETURN_IF_ERROR(text.status());
  Json json;
  try {
    json = Json::parse(*text);
  } catch (const Json::exception& e) {
    return InvalidArgument(config.path + ": not JSON: " + e.what());
  }
  if (!json.is_object()) return InvalidArgument(config.path + ": not a JSON object");
  RETURN_IF_ERROR(ReadFlag(config, json, "add_bos_token", &config.add_bos_token));
  RETURN_IF_ERROR(ReadFlag(config, json, "add_eos_token", &config.add_eos_token));
  RETURN_IF_ERROR(ReadTemplateVariables(json, &config));
  RETURN_IF_ERROR(ReadChatTemplates(json, &config));
  return config;
}

}  // namespace tandem
