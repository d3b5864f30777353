#include "model/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text_file.h"

namespace tandem {
namespace {

using nlohmann::json;

// DeepSeek-V3's index has 91,991 names in 8.9 MB; the largest models we know have twice as many. A
// hostile index takes some twenty times its size while it is read.
constexpr size_t kMaxIndexBytes = size_t{32} << 20;

using WeightMap = std::map<std::string, std::string>;  // tensor -> shard

// A shard must lie in the model's folder: anything but a plain file name is refused.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

Result<WeightMap> LoadWeightMap(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxIndexBytes));
  json index;
  try {
    index = json::parse(text);
  } catch (const json::exception& e) {
    return InvalidArgument(path + ": not valid JSON: " + Quoted(e.what()));
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return InvalidArgument(path + ": weight_map is not an object");
  }
  WeightMap weight_map;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return InvalidArgument(path + ": weight_map: the shard of " + Quoted(name) +
                             " is not a file name: " + Quoted(shard.dump()));
    }
    weight_map.emplace(name, shard.get<std::string>());
  }
  if (weight_map.empty()) return InvalidArgument(path + ": weight_map is empty");
  return weight_map;
}

void AddKind(const std::string& kind, const std::vector<std::string>& names, std::string& report) {
  if (names.empty()) return;
  report += "; " + std::to_string(names.size()) + " " + kind + ": " + ListSome(names);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& folder) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(folder));
  const std::string single = folder + "/model.safetensors";
  std::error_code error;
  if (!std::filesystem::exists(single, error)) {
    RETURN_IF_ERROR(checkpoint->AddShards(folder));
    return checkpoint;
  }
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
  for (TensorInfo& tensor : file.TakeTensors()) {
    std::string name = tensor.name;
    checkpoint->tensors_.emplace(std::move(name), Entry{std::move(tensor)});
  }
  checkpoint->files_.push_back(std::move(file));
  return checkpoint;
}

Status Checkpoint::AddShards(const std::string& folder) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  std::error_code error;
  if (!std::filesystem::exists(index_path, error)) {
    return NotFound(folder + ": neither model.safetensors nor model.safetensors.index.json");
  }
  ASSIGN_OR_RETURN(const WeightMap weight_map, LoadWeightMap(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);

  std::vector<std::string> not_in_index;
  for (const std::string& shard : shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder + "/" + shard));
    for (TensorInfo& tensor : file.TakeTensors()) {
      const auto entry = weight_map.find(tensor.name);
      if (entry == weight_map.end() || entry->second != shard) {
        not_in_index.push_back(Quoted(tensor.name) + " of " + shard);
      } else {
        tensor.file = static_cast<int>(files_.size());
        tensors_.emplace(entry->first, Entry{std::move(tensor)});
      }
    }
    files_.push_back(std::move(file));
  }
  std::vector<std::string> not_in_shard;
  for (const auto& [name, shard] : weight_map) {
    if (!tensors_.contains(name)) not_in_shard.push_back(Quoted(name) + " of " + shard);
  }
  if (not_in_index.empty() && not_in_shard.empty()) return Status();
  std::string report = index_path + " and its shards do not name the same tensors";
  AddKind("in the index only", not_in_shard, report);
  AddKind("in a shard only", not_in_index, report);
  return InvalidArgument(report);
}

Status Checkpoint::Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const {
  return files_[tensor.file].Read(tensor, begin, out);
}

}  // namespace tandem
