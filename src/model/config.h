// What config.json and generation_config.json say about a model: checked numbers and what follows
// from them. No tensors, no files other than these two.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

// YaRN parameters; without `present` the rotary frequencies are the plain ones.
struct RopeScaling {
  bool present = false;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;

  bool operator==(const RopeScaling&) const = default;
};

// How a row's experts are chosen and weighed (MODEL.md 2.4).
enum class RouterKind {
  kNoauxTc,             // V3: sigmoid, bias takes part in the choice, groups by their two best
  kGreedy,              // V2: softmax, the best of all
  kGroupLimitedGreedy,  // V2: softmax, the best of the groups whose best expert is best
};

// Blocks of FP8 tensors: `name`.weight_scale_inv holds one scale per block of this size, smaller at
// the edges. Which tensors are FP8 is decided by their own dtype.
struct QuantizationConfig {
  bool present = false;
  int64_t block_rows = 0;     // of outputs
  int64_t block_columns = 0;  // of inputs (K)
};

// A model of the DeepSeek-V2, V3 or GLM-4-MoE-lite type. Fields are named as in config.json. After
// LoadModelConfig every field is inside the bounds given in config.cc, so that the product of any
// three sizes fits in int64_t.
struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;  // MTP modules
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;  // 0 = none: one q_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;  // 0 = no shared MLP
  int64_t num_experts_per_tok = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t max_position_embeddings = 0;
  RouterKind router = RouterKind::kNoauxTc;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  QuantizationConfig quantization;
  std::string model_type;  // as in the file
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // may be empty

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }

  // Whether a layer's feed-forward part is the experts. The MTP layer, whose index is
  // num_hidden_layers, always is, whatever first_k_dense_replace and moe_layer_freq say.
  bool IsMoeLayer(int64_t layer) const;

  // The factor of attention scores, YaRN's correction by mscale_all_dim included.
  float SoftmaxScale() const;

  // Radians per position for each of the qk_rope_head_dim / 2 pairs (2i, 2i+1).
  std::vector<float> RopeInvFreq() const;

  // The factor of both cosine and sine.
  float RopeMscale() const;
};

// What a model's author wants sampled when a request does not say. Absent stays absent.
struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;  // generation_config.json's, else config.json's; may be empty
  std::optional<int32_t> bos_token_id;
  std::optional<bool> do_sample;
  std::optional<float> temperature;  // 0 if do_sample is false
  std::optional<int32_t> top_k;      // 0 = off
  std::optional<float> top_p;
  std::optional<float> min_p;
};

// Reads `folder`/config.json. Errors: kNotFound without the file, else kInvalidArgument naming
// file, field and value of the first thing that is wrong or that this engine does not support.
Result<ModelConfig> LoadModelConfig(const std::string& folder);

// Reads `folder`/generation_config.json, which may be missing. Errors as above.
Result<GenerationDefaults> LoadGenerationConfig(const std::string& folder,
                                                const ModelConfig& config);

}  // namespace tandem
