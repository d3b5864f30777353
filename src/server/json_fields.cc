#include "server/json_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace tandem {
namespace {

// Tools' parameter schemas nest deepest in real requests: about ten levels.
constexpr size_t kMaxDepth = 100;

// An object's fields are kept in order and found by walking, so that reading takes the square of
// their number. A thousand of them, many times in the largest body, is a second's work.
constexpr int kMaxFields = 1024;

// Looks at the brackets and colons only; what is wrong otherwise is the parser's to find.
Status CheckShape(std::string_view text) {
  std::vector<int> fields(1, 0);  // of the objects that are open, outermost first
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      fields.push_back(0);
      if (fields.size() > kMaxDepth + 1) {
        return InvalidArgument(fmt::format("the JSON is nested deeper than {} levels", kMaxDepth));
      }
    } else if ((c == '}' || c == ']') && fields.size() > 1) {
      fields.pop_back();
    } else if (c == ':' && ++fields.back() > kMaxFields) {
      return InvalidArgument(
          fmt::format("an object of the JSON has more than {} fields", kMaxFields));
    }
  }
  return Status();
}

// A value for a message, cut when long.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr size_t kMax = 60;
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  RETURN_IF_ERROR(CheckShape(text));
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    std::string why =
        error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    if (const size_t end = why.find("] "); end != std::string::npos) why.erase(0, end + 2);
    return InvalidArgument("not valid JSON: " + why);
  }
}

std::string_view JsonKind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::null:
      return "null";
    default:
      return "a number";
  }
}

const Json* JsonFields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> JsonFields::Integer(const char* name, int64_t min, int64_t max) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  // Integers above int64_t's range are stored unsigned; none of our fields takes them.
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Refuse(name, max == INT64_MAX ? fmt::format("{} must be an integer of at least {}, not {}",
                                                name, min, Shown(*value))
                                  : fmt::format("{} must be an integer from {} to {}, not {}", name,
                                                min, max, Shown(*value)));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

std::optional<float> JsonFields::Number(const char* name, float min, float max) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min) || !(value->get<double>() <= max)) {
    Refuse(name,
           fmt::format("{} must be a number from {} to {}, not {}", name, min, max, Shown(*value)));
    return std::nullopt;
  }
  return static_cast<float>(value->get<double>());
}

std::optional<bool> JsonFields::Bool(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Refuse(name, fmt::format("{} must be true or false, not {}", name, Shown(*value)));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> JsonFields::String(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Refuse(name, fmt::format("{} must be a string, not {}", name, JsonKind(*value)));
    return std::nullopt;
  }
  return value->get<std::string>();
}

void JsonFields::Refuse(std::string name, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(name);
  Refuse(std::move(error));
}

void JsonFields::Refuse(ApiError error) {
  if (!error_) error_ = std::move(error);
}

}  // namespace tandem
