#include "model/draft_export.h"

#include <sstream>

namespace tandem {
namespace {

template <typename T>
struct Field {
  const char* name;
  T ModelConfig::*value;
};

constexpr Field<int64_t> kSizes[] = {
    {"vocab_size", &ModelConfig::vocab_size},
    {"hidden_size", &ModelConfig::hidden_size},
    {"moe_intermediate_size", &ModelConfig::moe_intermediate_size},
    {"num_attention_heads", &ModelConfig::num_attention_heads},
    {"q_lora_rank", &ModelConfig::q_lora_rank},
    {"kv_lora_rank", &ModelConfig::kv_lora_rank},
    {"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim},
    {"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim},
    {"v_head_dim", &ModelConfig::v_head_dim},
    {"n_routed_experts", &ModelConfig::n_routed_experts},
    {"n_shared_experts", &ModelConfig::n_shared_experts},
    {"num_experts_per_tok", &ModelConfig::num_experts_per_tok},
    {"n_group", &ModelConfig::n_group},
    {"topk_group", &ModelConfig::topk_group},
};
constexpr Field<double> kNumbers[] = {
    {"routed_scaling_factor", &ModelConfig::routed_scaling_factor},
    {"rms_norm_eps", &ModelConfig::rms_norm_eps},
    {"rope_theta", &ModelConfig::rope_theta},
};

template <typename T>
Status CheckEqual(const std::string& folder, const char* name, const T& target, const T& draft) {
  if (target == draft) return Status();
  std::ostringstream message;
  message << folder << "/config.json: " << name << ": " << draft << ", but the target model has "
          << target;
  return InvalidArgument(message.str());
}

}  // namespace

Result<ModelConfig> LoadDraftConfig(const std::string& folder, const ModelConfig& target) {
  ASSIGN_OR_RETURN(const ModelConfig draft, LoadModelConfig(folder));
  for (const auto& field : kSizes) {
    RETURN_IF_ERROR(CheckEqual(folder, field.name, target.*field.value, draft.*field.value));
  }
  for (const auto& field : kNumbers) {
    RETURN_IF_ERROR(CheckEqual(folder, field.name, target.*field.value, draft.*field.value));
  }
  RETURN_IF_ERROR(
      CheckEqual(folder, "norm_topk_prob", target.norm_topk_prob, draft.norm_topk_prob));
  RETURN_IF_ERROR(CheckEqual(folder, "topk_method", static_cast<int>(target.router),
                             static_cast<int>(draft.router)));
  const RopeScaling &a = target.rope_scaling, &b = draft.rope_scaling;
  RETURN_IF_ERROR(CheckEqual(folder, "rope_scaling (0 = none)", a.present, b.present));
  RETURN_IF_ERROR(CheckEqual(folder, "rope_scaling.factor", a.factor, b.factor));
  RETURN_IF_ERROR(CheckEqual(folder, "rope_scaling.mscale", a.mscale, b.mscale));
  RETURN_IF_ERROR(
      CheckEqual(folder, "rope_scaling.mscale_all_dim", a.mscale_all_dim, b.mscale_all_dim));
  return draft;
}

}  // namespace tandem
