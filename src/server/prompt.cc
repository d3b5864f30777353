#include "server/prompt.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace tandem {
namespace {

// A message's content as the templates take it: a string. Text parts are joined by line breaks.
Result<Json> PlainContent(const Json& content) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) {
    return InvalidArgument(fmt::format("content must be a string or an array of text parts, not {}",
                                       JsonKind(content)));
  }
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || !part.contains("type") || part["type"] != "text" ||
        !part.contains("text") || !part["text"].is_string()) {
      return InvalidArgument("only content parts of type \"text\" are supported");
    }
    if (!text.empty()) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  return Json(text);
}

Result<Json> PlainMessage(Json message) {
  static const std::set<std::string> kRoles = {"system", "user", "assistant", "tool"};
  if (!message.is_object()) return InvalidArgument("must be an object");
  if (!message.contains("role") || !message["role"].is_string()) {
    return InvalidArgument("role must be a string");
  }
  if (message["role"] == "developer") message["role"] = "system";  // the API's newer word for it
  if (!kRoles.contains(message["role"].get_ref<const std::string&>())) {
    return InvalidArgument("role must be system, developer, user, assistant or tool");
  }
  const bool may_be_empty = message["role"] == "assistant";
  if (message.contains("content")) {
    ASSIGN_OR_RETURN(message["content"], PlainContent(message["content"]));
  }
  if (!may_be_empty && (!message.contains("content") || message["content"].is_null())) {
    return InvalidArgument("content is missing");
  }
  return message;
}

Result<std::string> RenderMessages(const Json& messages, const ServedModel& model,
                                   JsonFields& fields) {
  if (model.chat_template == nullptr) {
    return InvalidArgument("this model has no chat template: give one at start, or use prompt");
  }
  if (!messages.is_array() || messages.empty()) {
    return InvalidArgument("messages must be an array of at least one message");
  }
  Json plain = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = PlainMessage(messages[i]);
    if (!message.ok()) {
      return InvalidArgument(fmt::format("messages[{}]: {}", i, message.status().message()));
    }
    plain.push_back(std::move(message).value());
  }
  const Json* tools = fields.Find("tools");
  if (tools != nullptr && !tools->is_array()) return InvalidArgument("tools must be an array");
  if (tools != nullptr && tools->empty()) tools = nullptr;
  const Json* arguments = fields.Find("chat_template_kwargs");
  if (arguments != nullptr && !arguments->is_object()) {
    return InvalidArgument("chat_template_kwargs must be an object");
  }
  const bool add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  return model.chat_template->Render(plain.dump(), tools == nullptr ? "" : tools->dump(),
                                     arguments == nullptr ? "" : arguments->dump(),
                                     add_generation_prompt);
}

Result<std::vector<int32_t>> PromptOfMessages(const Json& messages, const ServedModel& model,
                                              JsonFields& fields) {
  ASSIGN_OR_RETURN(const std::string text, RenderMessages(messages, model, fields));
  return model.tokenizer->Encode(text, false);  // the template prints BOS itself
}

Result<std::vector<int32_t>> PromptOfText(const Json& prompt, const ServedModel& model,
                                          JsonFields& fields) {
  if (prompt.is_array()) {
    if (!prompt.empty() && !prompt[0].is_number()) {
      return InvalidArgument("one prompt per request: a string or an array of token ids");
    }
    return ReadTokenIds(prompt, model.vocab_size);
  }
  if (!prompt.is_string()) {
    return InvalidArgument(
        fmt::format("prompt must be a string or an array of token ids, not {}", JsonKind(prompt)));
  }
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  return model.tokenizer->Encode(prompt.get_ref<const std::string&>(), add_special_tokens);
}

}  // namespace

Result<std::vector<int32_t>> ReadTokenIds(const Json& value, int32_t vocab_size) {
  if (!value.is_array()) {
    return InvalidArgument(fmt::format("must be an array of token ids, not {}", JsonKind(value)));
  }
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    const bool fits = id.is_number_integer() &&
                      !(id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX) &&
                      id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_size;
    if (!fits) {
      return InvalidArgument(fmt::format("item {} is not a token id: an integer from 0 to {}",
                                         ids.size(), vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return ids;
}

std::vector<int32_t> ReadPrompt(ApiKind kind, const ServedModel& model, JsonFields& fields) {
  struct Source {
    const char* field;
    bool offered;
  };
  const Source sources[] = {
      {"prompt", kind != ApiKind::kChat},
      {"prompt_token_ids", kind == ApiKind::kLine},
      {"messages", kind != ApiKind::kCompletion},
  };
  const char* name = nullptr;
  for (const Source& source : sources) {
    if (!source.offered || fields.Find(source.field) == nullptr) continue;
    if (name != nullptr) {
      fields.Refuse(source.field, fmt::format("{} and {} exclude each other", name, source.field));
      return {};
    }
    name = source.field;
  }
  if (name == nullptr) {
    const char* wanted = kind == ApiKind::kCompletion ? "prompt"
                         : kind == ApiKind::kChat     ? "messages"
                                                      : "prompt, prompt_token_ids or messages";
    fields.Refuse(kind == ApiKind::kChat ? "messages" : "prompt",
                  fmt::format("{} is missing", wanted));
    return {};
  }
  const std::string field = name;
  const Json& value = *fields.Find(name);
  auto ids = field == "messages" ? PromptOfMessages(value, model, fields)
             : field == "prompt" ? PromptOfText(value, model, fields)
                                 : ReadTokenIds(value, model.vocab_size);
  if (ids.ok()) return std::move(ids).value();
  std::string why = ids.status().message();
  if (why.rfind(field, 0) != 0) why = field + ": " + why;
  fields.Refuse(field, std::move(why));
  return {};
}

}  // namespace tandem
