#include "model/weights.h"

#include "model/checkpoint.h"
#include "model/draft_export.h"
#include "model/weight_walk.h"

namespace tandem {
namespace {

int64_t BytesOf(const AttentionShard& shard) {
  size_t bytes = shard.query.bytes() + shard.output.bytes();
  for (const PackedMatrix& matrix : shard.key_up) bytes += matrix.bytes();
  for (const PackedMatrix& matrix : shard.value_up) bytes += matrix.bytes();
  return static_cast<int64_t>(bytes);
}

int64_t BytesOf(const FfnShard& shard) {
  size_t bytes = shard.mlp.gate.bytes() + shard.mlp.up.bytes() + shard.mlp.down.bytes();
  for (const ExpertWeights& expert : shard.experts) {
    bytes += expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
  }
  return static_cast<int64_t>(bytes);
}

int64_t BytesOf(const LayerCommon& common) {
  return static_cast<int64_t>(common.input_norm.bytes() + common.post_attention_norm.bytes() +
                              common.q_a.bytes() + common.q_a_norm.bytes() + common.kv_a.bytes() +
                              common.kv_a_norm.bytes() + common.router.bytes() +
                              common.router_bias.bytes());
}

std::string LayerPrefix(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

// The state of the MTP modules under `options`, or the error of asking for what is not there.
Result<MtpState> ChooseMtp(const TensorSource& source, const ModelConfig& config,
                           const LoadOptions& options) {
  const bool require = options.mtp == MtpUse::kRequire;
  const MtpState found = options.draft_folder.empty() ? FindMtp(source, config) : MtpState::kLoaded;
  if (found == MtpState::kNone && require) {
    return InvalidArgument("MTP was asked for, but the model has none: num_nextn_predict_layers 0");
  }
  if (found == MtpState::kAbsent && require) {
    return InvalidArgument("MTP was asked for, but the checkpoint has no MTP tensors (" +
                           LayerPrefix(config.num_hidden_layers) +
                           "*), although num_nextn_predict_layers is " +
                           std::to_string(config.num_nextn_predict_layers));
  }
  const bool leave_out = found == MtpState::kLoaded && options.mtp == MtpUse::kLeaveOut;
  return leave_out ? MtpState::kLeftOut : found;
}

}  // namespace

MtpState FindMtp(const TensorSource& source, const ModelConfig& config) {
  if (config.num_nextn_predict_layers == 0) return MtpState::kNone;
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    if (source.HasPrefix(LayerPrefix(config.num_hidden_layers + i))) return MtpState::kLoaded;
  }
  return MtpState::kAbsent;
}

ModelWeights::ModelWeights(const ModelConfig& config, const Layout& layout, int64_t modules)
    : config_(config),
      layout_(layout),
      common_(config.num_hidden_layers + modules),
      attention_(layout.attn_tp_size()),
      ffn_(layout.tp_size()),
      heads_(layout.tp_size()),
      mtp_(modules) {
  for (auto& layers : attention_) layers.resize(common_.size());
  for (auto& layers : ffn_) layers.resize(common_.size());
}

// Both of Plan (`loaded` is null) and of Load, so that they cannot differ.
Result<WeightPlan> ModelWeights::Walk(TensorSource& source, const ModelConfig& config,
                                      const Layout& layout, const LoadOptions& options,
                                      std::unique_ptr<ModelWeights>* loaded) {
  ASSIGN_OR_RETURN(const MtpState state, ChooseMtp(source, config, options));
  const bool apart = !options.draft_folder.empty();
  const int64_t modules = state != MtpState::kLoaded ? 0
                          : apart                    ? 1
                                                     : config.num_nextn_predict_layers;
  std::unique_ptr<ModelWeights> weights(new ModelWeights(config, layout, modules));
  weights->mtp_state_ = state;
  LoadQueue queue;
  WeightWalk walk(*weights, options.num_threads, loaded != nullptr ? &queue : nullptr);
  walk.AddTarget(source);
  std::unique_ptr<Checkpoint> draft;
  if (modules > 0 && apart) {
    ASSIGN_OR_RETURN(const ModelConfig draft_config, LoadDraftConfig(options.draft_folder, config));
    ASSIGN_OR_RETURN(draft, Checkpoint::Open(options.draft_folder));
    RETURN_IF_ERROR(walk.AddModule(0, *draft, 0, draft_config.quantization, source));
    RETURN_IF_ERROR(draft->Finish());
  } else {
    for (int64_t i = 0; i < modules; ++i) {
      RETURN_IF_ERROR(
          walk.AddModule(i, source, config.num_hidden_layers + i, config.quantization, source));
    }
  }
  if (state == MtpState::kLeftOut) {
    // Some of its tensors exist: a checkpoint without all of them is damaged, used or not.
    const int64_t left_out = config.num_nextn_predict_layers;
    ModelWeights unused(config, layout, left_out);
    WeightWalk check(unused, options.num_threads, nullptr);
    for (int64_t i = 0; i < left_out; ++i) {
      check.AddModuleLayer(i, source, config.num_hidden_layers + i, config.quantization);
    }
  }
  for (int64_t i = 0; (modules == 0 || apart) && i < config.num_nextn_predict_layers; ++i) {
    source.SkipPrefix(LayerPrefix(config.num_hidden_layers + i));
  }
  RETURN_IF_ERROR(source.Finish());
  walk.AddRotary(options.positions);
  WeightPlan plan = walk.plan();
  plan.mtp = state;
  if (loaded == nullptr) return plan;
  RETURN_IF_ERROR(queue.Run(options.num_threads, options.progress));
  weights->rope_ = RopeTable(config.RopeInvFreq(), config.RopeMscale(), options.positions);
  if (options.progress) options.progress(1.0);
  *loaded = std::move(weights);
  return plan;
}

Result<std::unique_ptr<ModelWeights>> ModelWeights::Load(TensorSource& source,
                                                         const ModelConfig& config,
                                                         const Layout& layout,
                                                         const LoadOptions& options) {
  std::unique_ptr<ModelWeights> weights;
  RETURN_IF_ERROR(Walk(source, config, layout, options, &weights).status());
  return weights;
}

Result<std::unique_ptr<ModelWeights>> ModelWeights::Load(const std::string& folder,
                                                         const ModelConfig& config,
                                                         const Layout& layout,
                                                         const LoadOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(folder));
  return Load(*checkpoint, config, layout, options);
}

Result<WeightPlan> ModelWeights::Plan(TensorSource& source, const ModelConfig& config,
                                      const Layout& layout, const LoadOptions& options) {
  return Walk(source, config, layout, options, nullptr);
}

int64_t ModelWeights::RankBytes(int rank) const {
  int64_t bytes = static_cast<int64_t>(heads_[rank].bytes());
  for (const MtpWeights& mtp : mtp_) {
    if (!mtp.heads.empty()) bytes += static_cast<int64_t>(mtp.heads[rank].bytes());
  }
  for (const FfnShard& shard : ffn_[rank]) bytes += BytesOf(shard);
  if (layout_.dp_size() == 1) {
    for (const AttentionShard& shard : attention_[layout_.attn_rank(rank)]) bytes += BytesOf(shard);
  }
  return bytes;
}

int64_t ModelWeights::SharedBytes() const {
  int64_t bytes =
      static_cast<int64_t>(embedding_.data.bytes() + rope_.bytes() + final_norm_.bytes());
  for (const LayerCommon& common : common_) bytes += BytesOf(common);
  if (layout_.dp_size() > 1) {
    for (const auto& shards : attention_) {
      for (const AttentionShard& shard : shards) bytes += BytesOf(shard);
    }
  }
  for (const MtpWeights& mtp : mtp_) {
    bytes += static_cast<int64_t>(mtp.enorm.bytes() + mtp.hnorm.bytes() + mtp.head_norm.bytes() +
                                  mtp.eh_proj.bytes() + mtp.embedding.data.bytes());
  }
  return bytes;
}

}  // namespace tandem
