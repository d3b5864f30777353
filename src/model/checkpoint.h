// A model folder's safetensors files as one source of tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/tensor_source.h"

namespace tandem {

class Checkpoint : public TensorSource {
 public:
  // Opens `folder`/model.safetensors, or else the shards of `folder`/model.safetensors.index.json.
  // Errors: kNotFound without either, kInvalidArgument for a bad file, a missing shard, or an index
  // and shards that do not name the same tensors.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& folder);

  Status Read(const TensorInfo& tensor, size_t begin, std::span<std::byte> out) const override;

 private:
  explicit Checkpoint(const std::string& folder) : TensorSource(folder) {}
  Status AddShards(const std::string& folder);

  std::vector<SafetensorsFile> files_;
};

}  // namespace tandem
