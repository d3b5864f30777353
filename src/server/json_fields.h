// Reading a client's JSON: bounded parsing, and typed fields whose first fault becomes the API's
// error. Knows no field names.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem {

// Keeps the order of an object's fields: templates print it.
using Json = nlohmann::ordered_json;

// An error as the API shows it.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // empty: none
  std::string code;   // empty: none
};

// Parses one JSON text. Errors: what is wrong with it and where; also when it is nested deeper, or
// an object has more fields, than any request needs (later stages walk it recursively and look
// fields up one by one).
Result<Json> ParseJson(std::string_view text);

// "a number", "an array", ... for messages.
std::string_view JsonKind(const Json& value);

// Typed access to the fields of one object. Absent and null fields are nullopt. The first fault is
// kept, and later reads go on harmlessly, so that callers check error() once.
class JsonFields {
 public:
  // REQUIRES: `object` is a JSON object and outlives this.
  explicit JsonFields(const Json& object) : object_(object) {}

  // Null if absent or null.
  const Json* Find(const char* name) const;

  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max);
  std::optional<float> Number(const char* name, float min, float max);
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> String(const char* name);

  // Records a fault of field `name`, unless there was one before.
  void Refuse(std::string name, std::string message);
  void Refuse(ApiError error);

  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  std::optional<ApiError> error_;
};

}  // namespace tandem
