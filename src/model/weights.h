// A model's weights, packed and divided over the ranks of a layout: what ranks have in common
// exists once, each rank's part is its own. Loading only; the forward pass is in rank_model.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "model/weight_plan.h"
#include "ops/attention.h"
#include "ops/experts.h"
#include "ops/rows.h"
#include "parallel/layout.h"

namespace tandem {

// Of one decoder layer, the same on all ranks.
struct LayerCommon {
  Buffer<float> input_norm, post_attention_norm;
  PackedMatrix q_a;  // empty if the model has no q_lora_rank
  Buffer<float> q_a_norm;
  PackedMatrix kv_a;  // [kv_lora_rank + rope, hidden]
  Buffer<float> kv_a_norm;
  PackedMatrix router;  // FP32 [experts, hidden]; empty in a dense layer
  Buffer<float> router_bias;
};

// The heads of one attention rank, in absorbed form (MODEL.md 2.3). Replicas share it.
struct AttentionShard {
  Range heads;
  PackedMatrix query;                  // [heads * (nope + rope), q_lora_rank or hidden]
  std::vector<PackedMatrix> key_up;    // per head: W_UK^T [kv_lora_rank, nope]
  std::vector<PackedMatrix> value_up;  // per head: W_UV [v, kv_lora_rank]
  PackedMatrix output;                 // [hidden, heads * v]
  std::vector<int32_t> output_bounds;  // K bounds of the rank's segments
};

// Columns that make one unit of a split down-projection where there are no scale blocks (DESIGN 7).
inline constexpr int64_t kMlpUnit = 16;

// Adjacent columns of a gated MLP: whole segments of units.
struct MlpShard {
  int64_t unit = kMlpUnit;           // columns of one unit: a scale block of `down`, or kMlpUnit
  int64_t first_unit = 0;            // of the whole MLP's
  PackedMatrix gate, up;             // [own columns, hidden]
  PackedMatrix down;                 // [hidden, own columns]
  std::vector<int32_t> down_bounds;  // K bounds of the rank's segments
};

// The feed-forward part of one layer on one rank.
struct FfnShard {
  MlpShard mlp;        // the dense MLP, or the shared experts
  Range expert_range;  // global numbers
  std::vector<ExpertWeights>
      experts;  // whole experts of the rank's segments; empty in a dense layer
  std::vector<int32_t> expert_bounds;  // local expert bounds of the rank's segments
};

// One MTP module. Its decoder layer is among the model's layers.
struct MtpWeights {
  Buffer<float> enorm, hnorm, head_norm;
  PackedMatrix eh_proj;             // [hidden, 2 hidden], embedding half first
  EmbeddingTable embedding;         // no columns: the target's
  std::vector<PackedMatrix> heads;  // [rank]; empty: the target's
};

enum class MtpUse {
  kLeaveOut,
  kIfPresent,  // load what there is; none is no error
  kRequire,
};

struct LoadOptions {
  MtpUse mtp = MtpUse::kLeaveOut;
  // Folder with the one MTP module to use instead of the model's own; empty = none. Asking for it
  // with kLeaveOut leaves out both.
  std::string draft_folder = {};
  int64_t positions = 0;  // of the rotary tables
  int num_threads = 1;    // that read and pack
  // Fraction of bytes done, rising to 1, at most 20 times a second, from any thread but never from
  // two at once. May be null.
  std::function<void(double)> progress = {};
};

// Whether `source` has the MTP modules that the config announces: kNone, kAbsent (no tensor of
// them), or kLoaded (some tensor).
MtpState FindMtp(const TensorSource& source, const ModelConfig& config);

// Immutable after Load; read by all ranks. Layers are numbered as in the checkpoint: MTP module i's
// layer is num_hidden_layers + i.
class ModelWeights {
 public:
  // Loads from `source`, which is not needed afterwards. Errors: one InvalidArgument listing every
  // tensor that is missing, left over, wrongly shaped or of a wrong format; one that says that the
  // checkpoint has no MTP tensors where they are required; those of reading (a file that has
  // shrunk), FP8 codes and scales that are no numbers. Nothing half-filled leaves it.
  static Result<std::unique_ptr<ModelWeights>> Load(TensorSource& source, const ModelConfig& config,
                                                    const Layout& layout,
                                                    const LoadOptions& options);
  // The same from the checkpoint in `folder`.
  static Result<std::unique_ptr<ModelWeights>> Load(const std::string& folder,
                                                    const ModelConfig& config, const Layout& layout,
                                                    const LoadOptions& options);

  // What Load would hold, to the byte, with its errors; nothing is loaded, but a module's embedding
  // and head are compared with the target's, which reads those tensors.
  static Result<WeightPlan> Plan(TensorSource& source, const ModelConfig& config,
                                 const Layout& layout, const LoadOptions& options);

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  int64_t num_layers() const { return static_cast<int64_t>(common_.size()); }
  MtpState mtp_state() const { return mtp_state_; }
  bool has_mtp() const { return !mtp_.empty(); }
  int num_mtp_modules() const { return static_cast<int>(mtp_.size()); }
  int64_t mtp_layer(int module) const { return config_.num_hidden_layers + module; }
  const MtpWeights& mtp(int module = 0) const { return mtp_[module]; }

  const EmbeddingTable& embedding() const { return embedding_; }
  // The MTP module's copy of the embedding; the target's object if the file's copy is equal.
  const EmbeddingTable& mtp_embedding(int module = 0) const {
    return mtp_[module].embedding.columns != 0 ? mtp_[module].embedding : embedding_;
  }
  const RopeTable& rope() const { return rope_; }
  const Buffer<float>& final_norm() const { return final_norm_; }
  const LayerCommon& common(int64_t layer) const { return common_[layer]; }
  const AttentionShard& attention(int64_t layer, int rank) const {
    return attention_[layout_.attn_rank(rank)][layer];
  }
  const FfnShard& ffn(int64_t layer, int rank) const { return ffn_[rank][layer]; }
  // The rank's slice of the vocabulary: [own tokens, hidden]; tokens VocabOf(rank).
  const PackedMatrix& head(int rank) const { return heads_[rank]; }
  const PackedMatrix& mtp_head(int rank, int module = 0) const {
    return mtp_[module].heads.empty() ? heads_[rank] : mtp_[module].heads[rank];
  }
  Range VocabOf(int rank) const { return Share(config_.vocab_size, rank, layout_.tp_size()); }

  // Bytes that only this rank uses; bytes that several ranks use, counted once.
  int64_t RankBytes(int rank) const;
  int64_t SharedBytes() const;

 private:
  friend class WeightWalk;
  // With all layers and ranks of `modules` MTP modules, and nothing in them.
  ModelWeights(const ModelConfig& config, const Layout& layout, int64_t modules);
  static Result<WeightPlan> Walk(TensorSource& source, const ModelConfig& config,
                                 const Layout& layout, const LoadOptions& options,
                                 std::unique_ptr<ModelWeights>* loaded);

  ModelConfig config_;
  Layout layout_;
  MtpState mtp_state_ = MtpState::kNone;
  EmbeddingTable embedding_;
  RopeTable rope_;
  Buffer<float> final_norm_;
  std::vector<LayerCommon> common_;
  std::vector<std::vector<AttentionShard>> attention_;  // [attention rank][layer]
  std::vector<std::vector<FfnShard>> ffn_;              // [rank][layer]
  std::vector<PackedMatrix> heads_;                     // [rank]
  std::vector<MtpWeights> mtp_;                         // [module]
};

}  // namespace tandem
