#include "model/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/text_file.h"

namespace tandem {
namespace {

using nlohmann::json;

// DeepSeek-V3's index has 91,991 names in 8.9 MB; the largest models we know have a few times as
// many.
constexpr size_t kMaxIndexBytes = size_t{256} << 20;

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
void AddKind(const std::string& kind, const std::set<std::string>& names, std::string& report) {
  AddKind(kind, std::vector<std::string>(names.begin(), names.end()), report);
}

bool MayBeLeftOver(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& folder) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->folder_ = folder;
  const std::string single = folder + "/model.safetensors";
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
    checkpoint->files_.push_back(std::move(file));
    for (const auto& [name, view] : checkpoint->files_.front().tensors()) {
      checkpoint->tensors_.emplace(name, &view);
    }
  } else {
    RETURN_IF_ERROR(checkpoint->AddShards(folder));
  }
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
  files_.reserve(shards.size());
  for (const std::string& shard : shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder + "/" + shard));
    files_.push_back(std::move(file));
    for (const auto& [name, view] : files_.back().tensors()) {
      const auto entry = weight_map.find(name);
      if (entry == weight_map.end() || entry->second != shard) {
        not_in_index.push_back(Quoted(name) + " of " + shard);
      } else {
        tensors_.emplace(name, &view);
      }
    }
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

const TensorView* Checkpoint::Take(const std::string& name, const std::vector<int64_t>& shape) {
  const auto found = tensors_.find(name);
  const std::lock_guard lock(mutex_);
  if (found == tensors_.end()) {
    missing_.insert(name + " " + ShapeName(shape));
    return nullptr;
  }
  used_.insert(name);
  const TensorView* view = found->second;
  if (view->shape != shape) {
    wrong_shape_.insert(name + " " + ShapeName(view->shape) + " instead of " + ShapeName(shape));
    return nullptr;
  }
  if (view->dtype != DType::kBF16 && view->dtype != DType::kF32) {
    wrong_dtype_.insert(name + " " + DTypeName(view->dtype));
    return nullptr;
  }
  return view;
}

void Checkpoint::SkipPrefix(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  for (auto it = tensors_.lower_bound(prefix);
       it != tensors_.end() && it->first.starts_with(prefix); ++it) {
    used_.insert(it->first);
  }
}

Status Checkpoint::Finish() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> left_over;
  for (const auto& [name, view] : tensors_) {
    if (!used_.contains(name) && !MayBeLeftOver(name)) left_over.push_back(Quoted(name));
  }
  std::string report;
  AddKind("missing", missing_, report);
  AddKind("of the wrong shape", wrong_shape_, report);
  AddKind("of a format other than BF16 and F32", wrong_dtype_, report);
  AddKind("left over", left_over, report);
  if (report.empty()) return Status();
  return InvalidArgument(folder_ + ": the tensors do not fit the model" + report);
}

}  // namespace tandem
