// Checked reading of one small JSON file of a model folder, field by field. Not for tensors, and it
// knows no field by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

// The fields of one JSON object. The first thing that is wrong is kept, here and in the object that
// this one was taken from, so that callers read on and check status() once. A null field is an
// absent field. A reader that finds nothing, or something wrong, leaves `out` as it was. Errors are
// kInvalidArgument and name file, field and value. One thread at a time.
class ConfigFields {
 public:
  // Errors: kNotFound without the file, kInvalidArgument if it is no JSON object, or longer or
  // deeper than such a file can be.
  static Result<ConfigFields> Load(const std::string& path);

  const Status& status() const;

  bool Has(const char* name) const;
  // Whether the field is there at all, be it as null.
  bool Mentions(const char* name) const;
  std::vector<std::string> Names() const;

  // The object in a field; nothing if it is absent or no object, the latter being an error.
  std::optional<ConfigFields> Object(const char* name) const;

  void Refuse(const std::string& name, const std::string& why) const;
  void RefuseValue(const char* name, const std::string& why) const;
  void RefuseIfAbsent(const char* name) const;

  // Numbers in [min, max].
  void ReadInt(const char* name, int64_t min, int64_t max, int64_t& out) const;
  void ReadInt(const char* name, int64_t min, int64_t max, int32_t& out) const;
  void ReadDouble(const char* name, double min, double max, double& out) const;
  void ReadBool(const char* name, bool& out) const;
  // One of `allowed`.
  void ReadWord(const char* name, std::initializer_list<const char*> allowed,
                std::string& out) const;
  // A list of exactly `size` words, each one of `allowed`.
  void ReadWords(const char* name, int64_t size, std::initializer_list<const char*> allowed,
                 std::vector<std::string>& out) const;
  // A list of exactly `size` numbers in [min, max].
  void ReadInts(const char* name, int64_t size, int64_t min, int64_t max,
                std::vector<int64_t>& out) const;
  // A token id below `vocab_size`, or a list of them.
  void ReadTokenIds(const char* name, int64_t vocab_size, std::vector<int32_t>& out) const;

  // The only value that this engine supports, if the field is there at all.
  void Only(const char* name, bool supported) const;
  void Only(const char* name, double supported) const;

 private:
  using Json = nlohmann::json;
  ConfigFields(std::shared_ptr<const Json> root, const Json* object, std::string prefix,
               std::shared_ptr<Status> status);

  const Json* Find(const char* name) const;
  void RefuseJson(const char* name, const Json& value, const std::string& why) const;
  bool ToInt(const char* name, const Json& value, int64_t min, int64_t max, int64_t& out) const;
  bool ToWord(const char* name, const Json& value, std::initializer_list<const char*> allowed,
              std::string& out) const;
  const Json* List(const char* name, int64_t size) const;

  std::shared_ptr<const Json> root_;
  const Json* object_;
  std::string prefix_;  // "file: " or "file: field."
  std::shared_ptr<Status> status_;
};

}  // namespace tandem
