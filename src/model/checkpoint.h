// A model folder's tensors, with a book of which of them were used. Knows names and shapes, not
// their meaning.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/safetensors.h"

namespace tandem {

// The loader takes every tensor that it needs with the shape that it expects and goes on after a
// failure; Finish() then reports everything that is wrong at once. Thread-safe: ranks may take
// tensors from their own threads. Views are valid as long as the checkpoint.
class Checkpoint {
 public:
  // Opens `folder`/model.safetensors, or else the shards of `folder`/model.safetensors.index.json.
  // Errors: kNotFound without either, kInvalidArgument for a bad file, a missing shard, or an index
  // and shards that do not name the same tensors.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& folder);

  // The tensor, now counted as used; or nullptr, with the reason kept for Finish(), if it is
  // missing, has another shape, or is neither BF16 nor F32. Taking one twice is legal.
  const TensorView* Take(const std::string& name, const std::vector<int64_t>& shape);

  bool Has(const std::string& name) const { return tensors_.contains(name); }

  // Counts every tensor whose name starts with `prefix` as used, unread: a part that is left out on
  // purpose.
  void SkipPrefix(const std::string& prefix);

  // OK if every Take succeeded and every tensor was taken or skipped ("*.rotary_emb.inv_freq",
  // which follow from the config, need not be). Else one kInvalidArgument that lists what is wrong
  // by kind.
  Status Finish() const;

 private:
  Checkpoint() = default;
  Status AddShards(const std::string& folder);

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> tensors_;

  mutable std::mutex mutex_;  // guards the book below
  std::set<std::string> used_;
  std::set<std::string> missing_;  // lines of the report
  std::set<std::string> wrong_shape_;
  std::set<std::string> wrong_dtype_;
};

}  // namespace tandem
