#include "model/tensor_source.h"

#include "base/text_file.h"

namespace tandem {
namespace {

void AddKind(const std::string& kind, const std::set<std::string>& lines, std::string& report) {
  if (lines.empty()) return;
  report += "; " + std::to_string(lines.size()) + " " + kind + ": " +
            ListSome(std::vector<std::string>(lines.begin(), lines.end()));
}

bool MayBeLeftOver(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

bool IsOneOf(DType dtype, TensorFormats formats) {
  switch (formats) {
    case TensorFormats::kPlain:
      return dtype == DType::kBF16 || dtype == DType::kF32;
    case TensorFormats::kPlainOrFp8:
      return dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF8E4M3;
    case TensorFormats::kScales:
      return dtype == DType::kF32 || dtype == DType::kF8E8M0;
  }
  return false;
}

}  // namespace

TensorSource::Entry* TensorSource::Find(const std::string& name, const std::vector<int64_t>&,
                                        TensorFormats) {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const TensorInfo* TensorSource::Take(const std::string& name, const std::vector<int64_t>& shape,
                                     TensorFormats formats) {
  Entry* entry = Find(name, shape, formats);
  if (entry == nullptr) {
    missing_.insert(name + " " + ShapeName(shape));
    return nullptr;
  }
  entry->used = true;
  const TensorInfo& info = entry->info;
  if (info.shape != shape) {
    wrong_shape_.insert(name + " " + ShapeName(info.shape) + " instead of " + ShapeName(shape));
    return nullptr;
  }
  if (!IsOneOf(info.dtype, formats)) {
    Refuse(info, "");
    return nullptr;
  }
  return &info;
}

void TensorSource::Refuse(const TensorInfo& tensor, const std::string& why) {
  wrong_format_.insert(tensor.name + " " + DTypeName(tensor.dtype) + why);
}

bool TensorSource::HasPrefix(const std::string& prefix) const {
  const auto it = tensors_.lower_bound(prefix);
  return it != tensors_.end() && it->first.starts_with(prefix);
}

void TensorSource::SkipPrefix(const std::string& prefix) {
  for (auto it = tensors_.lower_bound(prefix);
       it != tensors_.end() && it->first.starts_with(prefix); ++it) {
    it->second.used = true;
  }
}

Status TensorSource::Finish() const {
  std::set<std::string> left_over;
  for (const auto& [name, entry] : tensors_) {
    if (!entry.used && !MayBeLeftOver(name)) left_over.insert(Quoted(name));
  }
  std::string report;
  AddKind("missing", missing_, report);
  AddKind("of the wrong shape", wrong_shape_, report);
  AddKind("of a format that cannot be used there", wrong_format_, report);
  AddKind("left over", left_over, report);
  if (report.empty()) return Status();
  return InvalidArgument(what_ + ": the tensors do not fit the model" + report);
}

}  // namespace tandem
