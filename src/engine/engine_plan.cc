#include "engine/engine_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/system_memory.h"
#include "engine/cost_model.h"
#include "engine/scheduler.h"
#include "model/checkpoint.h"
#include "model/cycling_tensors.h"
#include "model/dummy_tensors.h"

namespace tandem {
namespace {

int NumCores() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Status CheckSpeculation(const ModelConfig& config, const EngineOptions& options) {
  RETURN_IF_ERROR(
      CheckRange("the number of draft tokens", options.num_draft_tokens, 0, kMaxDraftTokens));
  if (options.num_draft_tokens > 0 && config.num_nextn_predict_layers == 0 &&
      options.draft_model_folder.empty()) {
    return InvalidArgument(
        "speculation was asked for, but the model has no MTP module "
        "(num_nextn_predict_layers is 0)");
  }
  if (options.dummy_acceptance && options.num_draft_tokens == 0) {
    return InvalidArgument("an acceptance is given, but no speculation");
  }
  return Status();
}

// Fills in defaults and refuses what cannot work.
Status ResolveOptions(const ModelConfig& config, EngineOptions& options) {
  RETURN_IF_ERROR(CheckSpeculation(config, options));
  const int64_t longest = config.max_position_embeddings;
  if (options.context_length == 0) options.context_length = static_cast<int>(longest);
  RETURN_IF_ERROR(CheckRange("the context length", options.context_length, 2, longest));
  RETURN_IF_ERROR(CheckRange("the block size", options.block_size, 1, 1 << 24));
  options.block_size = std::min(options.block_size, options.context_length);
  RETURN_IF_ERROR(CheckRange("the number of running sequences", options.max_num_seqs, 1, 4096));
  RETURN_IF_ERROR(CheckRange("the chunked prefill size", options.chunked_prefill_size, 1, 1 << 20));
  options.chunked_prefill_size = static_cast<int>(std::min<int64_t>(
      options.chunked_prefill_size, int64_t{options.context_length} * options.max_num_seqs));
  RETURN_IF_ERROR(CheckRange("the number of threads", options.num_threads, 0, 4096));
  if (options.num_threads == 0) options.num_threads = NumCores();
  options.num_threads = std::max(options.num_threads, options.tp_size);
  if (!options.isa) options.isa = BestIsa();
  if (!IsSupported(*options.isa)) {
    return InvalidArgument(
        fmt::format("the instruction set {} was asked for, but this machine does not have it",
                    IsaName(*options.isa)));
  }
  if (options.max_step_rows == 0) {
    options.max_step_rows = DefaultMaxStepRows(config, options, KernelsFor(*options.isa),
                                               std::min(options.num_threads, NumCores()));
  }
  return CheckRange("the number of prompt rows in a mixed step", options.max_step_rows,
                    options.dp_size, 1 << 24);
}

RowLimits LimitsOf(const EngineOptions& options) {
  RowLimits limits;
  limits.draft_rows = options.max_num_seqs;
  limits.head_rows = options.max_num_seqs * (options.num_draft_tokens + 1) + kMaxPromptLogprobRows;
  limits.rows =
      options.max_num_seqs * (options.num_draft_tokens + 1) + options.chunked_prefill_size;
  return limits;
}

bool HasTensors(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(folder + "/model.safetensors", error) ||
         std::filesystem::exists(folder + "/model.safetensors.index.json", error);
}

Result<std::unique_ptr<TensorSource>> OpenWeights(const std::string& folder, PlanSource source,
                                                  EnginePlan& plan) {
  const bool config_only = source == PlanSource::kConfigIfNoFiles && !HasTensors(folder);
  if (config_only) plan.notes.push_back("there are no tensors: counted from config.json alone");
  if (plan.options.dummy_acceptance) {
    return std::unique_ptr<TensorSource>(
        new CyclingTensors(plan.config, plan.options.dummy_seed, *plan.options.dummy_acceptance));
  }
  if (config_only || plan.options.dummy_weights) {
    return std::unique_ptr<TensorSource>(new DummyTensors(plan.config, plan.options.dummy_seed));
  }
  ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(folder));
  return std::unique_ptr<TensorSource>(std::move(checkpoint));
}

void AddNotes(EnginePlan& plan) {
  const int64_t modules = plan.config.num_nextn_predict_layers;
  if (plan.budget.weights.mtp == MtpState::kAbsent) {
    plan.notes.push_back(
        fmt::format("config.json announces {} MTP module{}, the checkpoint has no tensor of {}: no "
                    "speculation",
                    modules, modules == 1 ? "" : "s", modules == 1 ? "it" : "them"));
  }
  if (modules > 1 && plan.budget.weights.mtp == MtpState::kLoaded) {
    plan.notes.push_back(fmt::format(
        "the model has {} MTP modules; all drafts come from the first, chained", modules));
  }
}

}  // namespace

Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return InvalidArgument(
      fmt::format("{} is {}, must be between {} and {}", name, value, low, high));
}

Result<EnginePlan> PlanEngine(const std::string& model_folder, const EngineOptions& options,
                              PlanSource source) {
  const int64_t process_bytes = ResidentMemory();
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_folder));
  ASSIGN_OR_RETURN(const Layout layout, Layout::Make(options.tp_size, options.dp_size));
  EnginePlan plan{config, layout, options, {}, nullptr, {}, {}, {}};
  RETURN_IF_ERROR(ResolveOptions(config, plan.options));
  plan.limits = LimitsOf(plan.options);
  ASSIGN_OR_RETURN(plan.weights, OpenWeights(model_folder, source, plan));
  plan.load.mtp = options.num_draft_tokens > 0 ? MtpUse::kRequire : MtpUse::kLeaveOut;
  plan.load.draft_folder = options.draft_model_folder;
  plan.load.positions = plan.options.context_length;
  plan.load.num_threads = std::min(plan.options.num_threads, NumCores());
  ASSIGN_OR_RETURN(const WeightPlan weights,
                   ModelWeights::Plan(*plan.weights, config, layout, plan.load));
  plan.budget = PlanMemory(config, layout, plan.options, plan.limits, weights, MachineMemory(),
                           process_bytes);
  AddNotes(plan);
  return plan;
}

}  // namespace tandem
