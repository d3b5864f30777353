#include "model/config_fields.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text_file.h"

namespace tandem {
namespace {

using nlohmann::json;

// Real configs have 2 kB, or 3 MB when a quantization lists every expert of 61 layers by name. The
// worst a file of this size can make of itself in memory is some 16 times as much ("[[],[],...").
constexpr size_t kMaxConfigBytes = size_t{4} << 20;
// The deepest config that we know has 4 levels. A nest costs more memory per byte than a list.
constexpr int kMaxDepth = 32;

json ParseShallow(const std::string& text) {
  return json::parse(text, [](int depth, json::parse_event_t, const json&) {
    if (depth > kMaxDepth) {
      throw std::length_error("more than " + std::to_string(kMaxDepth) + " levels of nesting");
    }
    return true;
  });
}

std::string Shown(const json& value) {
  const auto replace = json::error_handler_t::replace;
  // A list may be megabytes long: show its beginning, without printing all of it first.
  if (value.is_structured() && value.size() > 20) {
    return "a list or object of " + std::to_string(value.size()) + " values";
  }
  const std::string text = value.dump(-1, ' ', true, replace);
  return text.size() > 100 ? text.substr(0, 100) + "..." : text;
}

std::string Choices(std::initializer_list<const char*> allowed) {
  std::string list;
  for (const char* word : allowed) {
    list += std::string(list.empty() ? "" : " and ") + '"' + word + '"';
  }
  return list;
}

}  // namespace

ConfigFields::ConfigFields(std::shared_ptr<const Json> root, const Json* object, std::string prefix,
                           std::shared_ptr<Status> status)
    : root_(std::move(root)),
      object_(object),
      prefix_(std::move(prefix)),
      status_(std::move(status)) {}

Result<ConfigFields> ConfigFields::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  std::shared_ptr<const json> root;
  try {
    root = std::make_shared<const json>(ParseShallow(text));
  } catch (const std::exception& e) {
    return InvalidArgument(path + ": not valid JSON: " + Quoted(e.what()));
  }
  if (!root->is_object()) return InvalidArgument(path + ": not a JSON object");
  const json* object = root.get();
  return ConfigFields(std::move(root), object, path + ": ", std::make_shared<Status>());
}

const Status& ConfigFields::status() const {
  return *status_;
}

const json* ConfigFields::Find(const char* name) const {
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::Has(const char* name) const {
  return Find(name) != nullptr;
}

bool ConfigFields::Mentions(const char* name) const {
  return object_->contains(name);
}

std::vector<std::string> ConfigFields::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_->items()) names.push_back(name);
  return names;
}

std::optional<ConfigFields> ConfigFields::Object(const char* name) const {
  const json* value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) {
    RefuseJson(name, *value, "is not an object");
    return std::nullopt;
  }
  return ConfigFields(root_, value, prefix_ + name + ".", status_);
}

void ConfigFields::Refuse(const std::string& name, const std::string& why) const {
  if (status_->ok()) *status_ = InvalidArgument(prefix_ + name + ": " + why);
}

void ConfigFields::RefuseJson(const char* name, const json& value, const std::string& why) const {
  Refuse(name, Shown(value) + " " + why);
}

void ConfigFields::RefuseValue(const char* name, const std::string& why) const {
  const json* value = Find(name);
  RefuseJson(name, value ? *value : json(), why);
}

void ConfigFields::RefuseIfAbsent(const char* name) const {
  if (!Has(name)) Refuse(name, "is missing");
}

bool ConfigFields::ToInt(const char* name, const json& value, int64_t min, int64_t max,
                         int64_t& out) const {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() &&
                      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    RefuseJson(name, value,
               "is not a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    return false;
  }
  out = value.get<int64_t>();
  return true;
}

void ConfigFields::ReadInt(const char* name, int64_t min, int64_t max, int64_t& out) const {
  if (const json* value = Find(name)) ToInt(name, *value, min, max, out);
}

void ConfigFields::ReadInt(const char* name, int64_t min, int64_t max, int32_t& out) const {
  int64_t wide = out;
  ReadInt(name, min, max, wide);
  out = static_cast<int32_t>(wide);
}

void ConfigFields::ReadDouble(const char* name, double min, double max, double& out) const {
  const json* value = Find(name);
  if (!value) return;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    RefuseJson(name, *value,
               "is not a number from " + json(min).dump() + " to " + json(max).dump());
    return;
  }
  out = value->get<double>();
}

void ConfigFields::ReadBool(const char* name, bool& out) const {
  const json* value = Find(name);
  if (!value) return;
  if (!value->is_boolean()) return RefuseJson(name, *value, "is not true or false");
  out = value->get<bool>();
}

bool ConfigFields::ToWord(const char* name, const json& value,
                          std::initializer_list<const char*> allowed, std::string& out) const {
  for (const char* word : allowed) {
    if (value != word) continue;
    out = word;
    return true;
  }
  RefuseJson(name, value, "is not supported, only " + Choices(allowed));
  return false;
}

void ConfigFields::ReadWord(const char* name, std::initializer_list<const char*> allowed,
                            std::string& out) const {
  if (const json* value = Find(name)) ToWord(name, *value, allowed, out);
}

const json* ConfigFields::List(const char* name, int64_t size) const {
  const json* value = Find(name);
  if (!value || (value->is_array() && value->size() == static_cast<uint64_t>(size))) return value;
  RefuseJson(name, *value, "is not a list of " + std::to_string(size) + " values");
  return nullptr;
}

void ConfigFields::ReadWords(const char* name, int64_t size,
                             std::initializer_list<const char*> allowed,
                             std::vector<std::string>& out) const {
  const json* list = List(name, size);
  if (!list) return;
  std::vector<std::string> words(list->size());
  for (size_t i = 0; i < words.size(); ++i) {
    if (!ToWord(name, (*list)[i], allowed, words[i])) return;
  }
  out = std::move(words);
}

void ConfigFields::ReadInts(const char* name, int64_t size, int64_t min, int64_t max,
                            std::vector<int64_t>& out) const {
  const json* list = List(name, size);
  if (!list) return;
  std::vector<int64_t> numbers(list->size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!ToInt(name, (*list)[i], min, max, numbers[i])) return;
  }
  out = std::move(numbers);
}

void ConfigFields::ReadTokenIds(const char* name, int64_t vocab_size,
                                std::vector<int32_t>& out) const {
  const json* value = Find(name);
  if (!value) return;
  const size_t count = value->is_array() ? value->size() : 1;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    const json& id = value->is_array() ? (*value)[i] : *value;
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      return RefuseJson(name, id, "is not a token id below " + std::to_string(vocab_size));
    }
    ids.push_back(id.get<int32_t>());
  }
  out = std::move(ids);
}

void ConfigFields::Only(const char* name, bool supported) const {
  const json* value = Find(name);
  if (value && *value != json(supported)) {
    RefuseJson(name, *value, "is not supported, only " + json(supported).dump());
  }
}

void ConfigFields::Only(const char* name, double supported) const {
  const json* value = Find(name);
  if (value && !(value->is_number() && value->get<double>() == supported)) {
    RefuseJson(name, *value, "is not supported, only " + json(supported).dump());
  }
}

}  // namespace tandem
