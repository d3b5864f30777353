#include "server/unsupported_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

// A field and the JSON text of the value that changes nothing. null, "", [] and {} change nothing
// anywhere.
struct Unsupported {
  const char* name;
  const char* neutral;
};

constexpr Unsupported kUnsupported[] = {
    {"n", "1"},
    {"best_of", "1"},
    {"stop", "null"},
    {"presence_penalty", "0"},
    {"frequency_penalty", "0"},
    {"repetition_penalty", "1"},
    {"length_penalty", "1"},
    {"logit_bias", "null"},
    {"response_format", R"({"type":"text"})"},
    {"echo", "false"},
    {"suffix", "null"},
    {"use_beam_search", "false"},
    {"continue_final_message", "false"},
    {"truncate_prompt_tokens", "null"},
    {"functions", "null"},
    {"function_call", R"("none")"},
    {"prompt_embeds", "null"},
    {"bad_words", "null"},
    {"allowed_token_ids", "null"},
    {"logits_processors", "null"},
    {"structured_outputs", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"json_schema", "null"},
    {"regex", "null"},
    {"ebnf", "null"},
};

bool IsNeutral(const Json& value, const char* neutral) {
  const bool container = value.is_array() || value.is_object() || value.is_string();
  if (container && (value.empty() || (value.is_string() && value == ""))) return true;
  return value == Json::parse(neutral);
}

void Refuse(const char* name, JsonFields& fields) {
  fields.Refuse({400, fmt::format("{} is not supported yet", name), "invalid_request_error", name,
                 "unsupported_parameter"});
}

}  // namespace

void RefuseUnsupported(ApiKind kind, JsonFields& fields) {
  for (const Unsupported& field : kUnsupported) {
    const Json* value = fields.Find(field.name);
    if (value != nullptr && !IsNeutral(*value, field.neutral)) return Refuse(field.name, fields);
  }
  const Json* tools = fields.Find("tools");
  const Json* choice = fields.Find("tool_choice");
  const bool has_tools = tools != nullptr && !tools->empty();
  // Without tools "none" is what happens anyway.
  if (choice != nullptr && *choice != "auto" && (has_tools || *choice != "none")) {
    return Refuse("tool_choice", fields);
  }
  const Json* logprobs = fields.Find("prompt_logprobs");
  if (kind != ApiKind::kLine && logprobs != nullptr) Refuse("prompt_logprobs", fields);
}

}  // namespace tandem
