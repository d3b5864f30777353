#include "engine/row_trace.h"

#include <fmt/format.h>

#include "base/hash.h"

namespace tandem {

void RowTrace::Row(const OpTag& op, uint64_t request_id, int64_t position, int unit,
                   const void* data, size_t bytes) {
  const uint64_t hash = HashBytes(data, bytes);
  const std::lock_guard lock(mutex_);
  const auto [it, added] =
      index_.try_emplace({op.name, op.layer, op.pass}, static_cast<int>(operations_.size()));
  if (added) operations_.push_back(it->first);
  hashes_[{request_id, position, it->second, unit}] = hash;
}

std::optional<std::string> RowTrace::FirstDifference(const RowTrace& reference,
                                                     const RowTrace& other) {
  for (const auto& [key, hash] : reference.hashes_) {
    const Operation& op = reference.operations_[key.operation];
    const auto index = other.index_.find(op);
    if (index == other.index_.end()) continue;
    const auto it = other.hashes_.find({key.request_id, key.position, index->second, key.unit});
    if (it == other.hashes_.end() || it->second == hash) continue;
    return fmt::format("operation {} of layer {} (pass {}), request {}, position {}, unit {}",
                       op.name, op.layer, op.pass, key.request_id, key.position, key.unit);
  }
  return std::nullopt;
}

std::string RowTrace::Text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [key, hash] : hashes_) {
    const Operation& op = operations_[key.operation];
    text += fmt::format("{} {} {} {} {} {} {:016x}\n", key.request_id, key.position, op.name,
                        op.layer, op.pass, key.unit, hash);
  }
  return text;
}

}  // namespace tandem
