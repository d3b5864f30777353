#include "cli/inspect.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// By WeightType.
constexpr std::array<const char*, 3> kFormatNames = {"BF16", "FP32", "FP8"};

std::string Billions(int64_t count) {
  return count < 1'000'000'000 ? fmt::format("{:.2f} M", static_cast<double>(count) / 1e6)
                               : fmt::format("{:.2f} B", static_cast<double>(count) / 1e9);
}

const char* RouterName(RouterKind router) {
  switch (router) {
    case RouterKind::kNoauxTc:
      return "noaux_tc";
    case RouterKind::kGreedy:
      return "greedy";
    case RouterKind::kGroupLimitedGreedy:
      return "group_limited_greedy";
  }
  return "";
}

const char* MtpName(MtpState state) {
  switch (state) {
    case MtpState::kNone:
      return "none";
    case MtpState::kAbsent:
      return "announced, but not in the checkpoint";
    case MtpState::kLeftOut:
      return "left out";
    case MtpState::kLoaded:
      return "counted";
  }
  return "";
}

Json Parameters(const WeightPlan& weights) {
  return {{"total", weights.target.total},
          {"active", weights.target.active},
          {"mtp_total", weights.mtp_modules.total},
          {"mtp_active", weights.mtp_modules.active}};
}

}  // namespace

std::string InspectText(const EnginePlan& plan) {
  const ModelConfig& c = plan.config;
  const MemoryBudget& budget = plan.budget;
  const WeightPlan& weights = budget.weights;
  std::string text = fmt::format(
      "model        {}: {} layers, hidden {}, {} heads, latent {} + {} rotary, {}, vocabulary {}, "
      "context {}\n",
      c.model_type, c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.kv_lora_rank,
      c.qk_rope_head_dim,
      c.q_lora_rank > 0 ? fmt::format("q_lora_rank {}", c.q_lora_rank) : "no q_lora_rank",
      c.vocab_size, c.max_position_embeddings);
  text += fmt::format("experts      {} + {} shared, {} per token, {} of {} groups, router {}\n",
                      c.n_routed_experts, c.n_shared_experts, c.num_experts_per_tok, c.topk_group,
                      c.n_group, RouterName(c.router));
  text += fmt::format("parameters   {} in all, {} active", Billions(weights.target.total),
                      Billions(weights.target.active));
  if (weights.mtp_modules.total > 0) {
    text += fmt::format("; MTP {} more, {} active", Billions(weights.mtp_modules.total),
                        Billions(weights.mtp_modules.active));
  }
  text += fmt::format("\nMTP          {} announced, {}\nformats      ", c.num_nextn_predict_layers,
                      MtpName(weights.mtp));
  const char* separator = "";
  for (size_t type = 0; type < kFormatNames.size(); ++type) {
    if (weights.format_bytes[type] == 0) continue;
    text += fmt::format("{}{} {:.1f} MiB", separator, kFormatNames[type],
                        static_cast<double>(weights.format_bytes[type]) / (1 << 20));
    separator = ", ";
  }
  text += fmt::format("\nlayout       tp {} = {} replicas x {} attention ranks\n",
                      plan.layout.tp_size(), plan.layout.dp_size(), plan.layout.attn_tp_size());
  for (const std::string& note : plan.notes) text += "note         " + note + "\n";
  text += budget.Text(plan.layout) + "\n";
  if (!budget.fits()) text += "does not fit  " + budget.WhyNot() + "\n";
  return text;
}

std::string InspectJson(const EnginePlan& plan) {
  const ModelConfig& c = plan.config;
  const MemoryBudget& budget = plan.budget;
  const WeightPlan& weights = budget.weights;
  Json groups = Json::object(), formats = Json::object(), ranks = Json::array();
  for (int group = 0; group < kNumWeightGroups; ++group) {
    groups[kWeightGroupNames[group]] = weights.group_bytes[group];
  }
  for (size_t type = 0; type < kFormatNames.size(); ++type) {
    formats[kFormatNames[type]] = weights.format_bytes[type];
  }
  for (int rank = 0; rank < plan.layout.tp_size(); ++rank) {
    ranks.push_back({{"weights", weights.rank_bytes[rank]},
                     {"workspace", budget.workspace.rank[rank]},
                     {"total", budget.rank_bytes(plan.layout, rank)}});
  }
  const Json report = {
      {"model_type", c.model_type},
      {"num_hidden_layers", c.num_hidden_layers},
      {"hidden_size", c.hidden_size},
      {"n_routed_experts", c.n_routed_experts},
      {"num_experts_per_tok", c.num_experts_per_tok},
      {"router", RouterName(c.router)},
      {"max_position_embeddings", c.max_position_embeddings},
      {"num_nextn_predict_layers", c.num_nextn_predict_layers},
      {"mtp", MtpName(weights.mtp)},
      {"parameters", Parameters(weights)},
      {"bytes", {{"total", weights.total_bytes()}, {"groups", groups}, {"formats", formats}}},
      {"layout", {{"tp", plan.layout.tp_size()}, {"dp", plan.layout.dp_size()}}},
      {"ranks", ranks},
      {"shared_bytes", {{"weights", weights.shared_bytes}, {"workspace", budget.workspace.shared}}},
      {"kv",
       {{"bytes_per_token", budget.token_bytes},
        {"draft_bytes_per_token", budget.draft_token_bytes},
        {"pools", budget.num_pools},
        {"tokens_per_pool", budget.kv_tokens()},
        {"bytes", budget.kv_bytes()}}},
      {"memory",
       {{"total", budget.total_bytes()},
        {"machine", budget.machine_bytes},
        {"fits", budget.fits()}}},
      {"notes", plan.notes}};
  return report.dump(2, ' ', false, Json::error_handler_t::replace);
}

int RunInspect(const CommandLine& line) {
  const auto plan =
      PlanEngine(line.engine.model_folder, line.engine.options, PlanSource::kConfigIfNoFiles);
  if (!plan.ok()) {
    std::fprintf(stderr, "tandem: %s\n", plan.status().message().c_str());
    return 1;
  }
  for (const std::string& note : line.engine.notes) {
    std::fprintf(stderr, "tandem: %s\n", note.c_str());
  }
  std::printf("%s\n", line.inspect.json ? InspectJson(*plan).c_str() : InspectText(*plan).c_str());
  return 0;
}

}  // namespace tandem
