// A model's weights, packed and divided over the ranks of a layout: what ranks have in common
// exists once, each rank's part is its own. Loading only; the forward pass is in rank_model.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"
#include "model/config.h"
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

struct MtpWeights {
  Buffer<float> enorm, hnorm, head_norm;
  PackedMatrix eh_proj;  // [hidden, 2 hidden], embedding half first
};

// Immutable after Load; read by all ranks. Layers are numbered as in the checkpoint: the MTP
// module's layer is num_hidden_layers.
class ModelWeights {
 public:
  // `with_mtp` loads the MTP module; otherwise its tensors are left out. Errors: one
  // InvalidArgument listing every tensor that is missing, left over or wrongly shaped.
  // progress(fraction) is called on this thread.
  static Result<std::unique_ptr<ModelWeights>> Load(const std::string& folder,
                                                    const ModelConfig& config, const Layout& layout,
                                                    bool with_mtp, int64_t positions,
                                                    const std::function<void(double)>& progress);

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  bool has_mtp() const { return mtp_ != nullptr; }
  const MtpWeights& mtp() const { return *mtp_; }
  int64_t num_layers() const { return static_cast<int64_t>(common_.size()); }

  const EmbeddingTable& embedding() const { return embedding_; }
  // The MTP module's copy of the embedding; the same object if the file's copy is equal.
  const EmbeddingTable& mtp_embedding() const {
    return mtp_embedding_.columns != 0 ? mtp_embedding_ : embedding_;
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
  const PackedMatrix& mtp_head(int rank) const {
    return mtp_heads_.empty() ? heads_[rank] : mtp_heads_[rank];
  }
  Range VocabOf(int rank) const { return Share(config_.vocab_size, rank, layout_.tp_size()); }

  // Bytes that only this rank uses; bytes that several ranks use, counted once.
  int64_t RankBytes(int rank) const;
  int64_t SharedBytes() const;

 private:
  friend class WeightLoader;
  ModelWeights(const ModelConfig& config, const Layout& layout)
      : config_(config), layout_(layout) {}

  ModelConfig config_;
  Layout layout_;
  EmbeddingTable embedding_, mtp_embedding_;
  RopeTable rope_;
  Buffer<float> final_norm_;
  std::vector<LayerCommon> common_;
  std::vector<std::vector<AttentionShard>> attention_;  // [attention rank][layer]
  std::vector<std::vector<FfnShard>> ffn_;              // [rank][layer]
  std::vector<PackedMatrix> heads_, mtp_heads_;         // [rank]
  std::unique_ptr<MtpWeights> mtp_;
};

}  // namespace tandem
