// The walk over all tensors of a model: which there are, which part of them goes to which rank, and
// in which format. Counts, and if asked makes the matrices and queues their loading. Only for
// weights.cc.
#pragma once

#include <string>
#include <vector>

#include "model/load_queue.h"
#include "model/weights.h"

namespace tandem {

struct PackOptions {
  bool widen = false;  // keep in FP32
  bool active = true;  // every token's pass uses it
};

// Takes every tensor once. A tensor that is missing leaves its matrices empty; the source's
// Finish() then refuses the model, so no half-filled weights leave Load.
class WeightWalk {
 public:
  // `weights` has its layers and ranks, all empty. Without a `queue` it stays so. `num_threads` is
  // for comparing a module's embedding and head with the target's.
  WeightWalk(ModelWeights& weights, int num_threads, LoadQueue* queue);

  // The target, from `source`.
  void AddTarget(TensorSource& source);
  // MTP module `module`, which is layer `layer` of `source`; `quantization` is of that source.
  // `target` is the source of the whole model, perhaps the same. After AddTarget. Errors: those of
  // reading an embedding or a head.
  Status AddModule(int64_t module, TensorSource& source, int64_t layer,
                   const QuantizationConfig& quantization, TensorSource& target);
  // The same without embedding and head, which may be the target's: nothing is read.
  void AddModuleLayer(int64_t module, TensorSource& source, int64_t layer,
                      const QuantizationConfig& quantization);
  // The rotary tables, which come from no tensor.
  void AddRotary(int64_t positions);

  const WeightPlan& plan() const { return plan_; }

 private:
  static constexpr int kShared = -1;

  struct MatrixTensor {
    const TensorInfo* weight = nullptr;  // null if it cannot be used
    const TensorInfo* scales = nullptr;  // of an FP8 weight
  };
  // A part of a tensor, the matrix that it becomes, and the rank that uses it (or kShared).
  struct Target {
    PackPart part;
    PackedMatrix* matrix;
    int owner;
  };

  void SetGroup(WeightGroup group) { group_ = in_module_ ? WeightGroup::kMtp : group; }
  void Count(int owner, WeightType type, int64_t bytes);
  void CountParameters(const TensorInfo& tensor, bool active);

  MatrixTensor TakeMatrix(const std::string& name, int64_t rows, int64_t columns);
  // Makes the matrices of a tensor's parts, which together are the tensor.
  void Pack(const MatrixTensor& tensor, const std::vector<Target>& targets,
            PackOptions options = PackOptions());
  void Whole(const std::string& name, int64_t rows, int64_t columns, int owner,
             PackedMatrix& matrix);
  void Vector(const std::string& name, int64_t size, Buffer<float>& vector);
  void Embedding(const TensorInfo* tensor, EmbeddingTable& table);
  void Heads(const TensorInfo* tensor, std::vector<PackedMatrix>& heads);
  const TensorInfo* TakeOwnCopy(const std::vector<std::string>& names);
  Result<bool> IsCopy(const TensorInfo* own, const TensorSource& target_source,
                      const TensorInfo* target) const;

  void Layer(const std::string& prefix, int64_t layer);
  void Common(const std::string& prefix, LayerCommon& common);
  void Attention(const std::string& prefix, int64_t layer);
  void Router(const std::string& prefix, LayerCommon& common);
  void Mlp(const std::string& prefix, int64_t width, int64_t layer);
  void Experts(const std::string& prefix, int64_t layer);

  ModelWeights& weights_;
  const ModelConfig& config_;
  const Layout& layout_;
  const int num_threads_;
  LoadQueue* const queue_;
  WeightPlan plan_;

  // Of what is being walked.
  TensorSource* source_ = nullptr;
  QuantizationConfig quantization_;
  bool in_module_ = false;
  WeightGroup group_ = WeightGroup::kEmbedding;
};

}  // namespace tandem
