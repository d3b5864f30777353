#include "cli/engine_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "engine/step_plan.h"
#include "parallel/layout.h"

namespace tandem {
namespace {

std::string NormalizeFlag(const std::string& argument) {
  const size_t name_end = std::min(argument.find('='), argument.size());
  std::string name = argument.substr(0, name_end);
  if (name == "-tp") {
    name = "--tensor-parallel-size";  // the parser takes one letter after one dash
  } else if (name.rfind("--", 0) == 0) {
    std::replace(name.begin(), name.end(), '_', '-');
  } else {
    return argument;
  }
  return name + argument.substr(name_end);
}

// A positive number, in the flag's own words.
Status CheckAtLeast(const char* flag, std::optional<int64_t> value, int64_t min) {
  if (!value || *value >= min) return Status();
  return InvalidArgument(fmt::format("{} must be at least {}, not {}", flag, min, *value));
}

Status ResolveModel(const EngineFlags& flags, EngineSetup* setup) {
  if (flags.model.empty() && flags.model_option.empty()) {
    return InvalidArgument("the model's folder is missing: give MODEL or --model MODEL");
  }
  if (!flags.model.empty() && !flags.model_option.empty() && flags.model != flags.model_option) {
    return InvalidArgument(fmt::format("two models are given: '{}' and --model '{}'", flags.model,
                                       flags.model_option));
  }
  setup->model_folder = flags.model.empty() ? flags.model_option : flags.model;
  return Status();
}

Status ResolveLayout(const EngineFlags& flags, EngineSetup* setup) {
  const int tp = flags.tp_size.value_or(1);
  int dp = flags.dp_size.value_or(1);
  if (dp != 1 && !flags.enable_dp_attention) {
    return InvalidArgument(fmt::format(
        "--dp-size {} alone would be {} independent copies of the model, which is not offered; for "
        "{} replicas inside the world of ranks say -tp N --enable-dp-attention --dp-size {}",
        dp, dp, dp, dp));
  }
  if (flags.enable_dp_attention && !flags.dp_size) {
    dp = tp;
    setup->notes.push_back(
        fmt::format("--enable-dp-attention without --dp-size: {} replicas of one rank", dp));
  }
  const auto layout = Layout::Make(tp, dp);
  if (!layout.ok()) return layout.status();
  setup->options.tp_size = tp;
  setup->options.dp_size = dp;
  return Status();
}

Status ResolveSpeculation(const EngineFlags& flags, EngineSetup* setup) {
  if (!flags.method.empty() && flags.method != "mtp") {
    return InvalidArgument(
        fmt::format("--method {} is not offered; --method mtp is", flags.method));
  }
  int drafts = flags.num_speculative_tokens.value_or(0);
  if (drafts < 0 || drafts > kMaxDraftTokens) {
    return InvalidArgument(fmt::format("--num-speculative-tokens must be from 0 to {}, not {}",
                                       kMaxDraftTokens, drafts));
  }
  if (!flags.method.empty() && !flags.num_speculative_tokens) {
    drafts = 1;
    setup->notes.push_back("--method mtp without --num-speculative-tokens: 1 draft per step");
  }
  setup->options.num_draft_tokens = drafts;
  return Status();
}

Status ResolveLoading(const EngineFlags& flags, EngineSetup* setup) {
  EngineOptions& options = setup->options;
  if (flags.load_format != "auto" && flags.load_format != "safetensors" &&
      flags.load_format != "dummy") {
    return InvalidArgument(fmt::format("--load-format must be auto, safetensors or dummy, not '{}'",
                                       flags.load_format));
  }
  options.dummy_weights = flags.load_format == "dummy";
  for (const auto& [given, flag] : {std::pair(flags.dummy_seed.has_value(), "--dummy-seed"),
                                    {flags.dummy_acceptance.has_value(), "--dummy-acceptance"}}) {
    if (given && !options.dummy_weights) {
      return InvalidArgument(fmt::format("{} needs --load-format dummy", flag));
    }
  }
  RETURN_IF_ERROR(CheckAtLeast("--dummy-seed", flags.dummy_seed, 0));
  options.dummy_seed = static_cast<uint64_t>(flags.dummy_seed.value_or(0));
  options.dummy_acceptance = flags.dummy_acceptance;
  if (flags.dummy_acceptance && !(*flags.dummy_acceptance >= 0 && *flags.dummy_acceptance <= 1)) {
    return InvalidArgument(
        fmt::format("--dummy-acceptance must be from 0 to 1, not {}", *flags.dummy_acceptance));
  }
  options.draft_model_folder = flags.draft_model;
  if (!flags.draft_model.empty() && options.dummy_weights) {
    return InvalidArgument(
        "--speculative-draft-model-path and --load-format dummy exclude each other");
  }
  return Status();
}

Status ResolveKvFormat(const EngineFlags& flags, EngineSetup* setup) {
  if (flags.kv_cache_dtype == "bf16" || flags.kv_cache_dtype == "auto") {
    setup->options.kv_format = LatentFormat::kBf16;
  } else if (flags.kv_cache_dtype == "fp8" || flags.kv_cache_dtype == "fp8_e4m3") {
    setup->options.kv_format = LatentFormat::kFp8;
  } else if (flags.kv_cache_dtype == "fp32") {
    setup->options.kv_format = LatentFormat::kFp32;
  } else {
    return InvalidArgument(fmt::format("--kv-cache-dtype must be auto, bf16, fp8 or fp32, not '{}'",
                                       flags.kv_cache_dtype));
  }
  return Status();
}

Status ResolveCapacity(const EngineFlags& flags, EngineSetup* setup) {
  RETURN_IF_ERROR(CheckAtLeast("--block-size", flags.block_size, 1));
  RETURN_IF_ERROR(CheckAtLeast("--max-num-seqs", flags.max_num_seqs, 1));
  RETURN_IF_ERROR(CheckAtLeast("--chunked-prefill-size", flags.chunked_prefill_size, 1));
  RETURN_IF_ERROR(CheckAtLeast("--max-step-rows", flags.max_step_rows, 1));
  RETURN_IF_ERROR(CheckAtLeast("--max-total-tokens", flags.max_total_tokens, 1));
  RETURN_IF_ERROR(CheckAtLeast("--context-length", flags.context_length, 2));
  RETURN_IF_ERROR(CheckAtLeast("--threads", flags.threads, 1));
  RETURN_IF_ERROR(CheckAtLeast("--collective-timeout", flags.collective_timeout, 1));
  EngineOptions& options = setup->options;
  if (flags.memory_fraction) {
    if (!(*flags.memory_fraction > 0 && *flags.memory_fraction <= 1)) {
      return InvalidArgument(fmt::format(
          "--mem-fraction-static must be above 0 and at most 1, not {}", *flags.memory_fraction));
    }
    options.memory_fraction = *flags.memory_fraction;
  }
  options.block_size = flags.block_size.value_or(options.block_size);
  options.max_num_seqs = flags.max_num_seqs.value_or(options.max_num_seqs);
  options.chunked_prefill_size = flags.chunked_prefill_size.value_or(options.chunked_prefill_size);
  options.max_step_rows = flags.max_step_rows.value_or(options.max_step_rows);
  options.max_total_tokens = flags.max_total_tokens.value_or(options.max_total_tokens);
  if (flags.request_timeout) {
    if (!(*flags.request_timeout >= 0 && *flags.request_timeout <= kLongestTimeout)) {
      return InvalidArgument(fmt::format("--request-timeout must be from 0 to {} seconds, not {}",
                                         kLongestTimeout, *flags.request_timeout));
    }
    options.request_timeout_seconds = *flags.request_timeout;
  }
  if (flags.collective_timeout) options.collective_deadline_seconds = *flags.collective_timeout;
  options.context_length = flags.context_length.value_or(options.context_length);
  options.num_threads = flags.threads.value_or(options.num_threads);
  return Status();
}

Status ResolveIsa(const EngineFlags& flags, EngineSetup* setup) {
  if (flags.isa.empty()) return Status();
  setup->options.isa = ParseIsa(flags.isa);
  if (setup->options.isa) return Status();
  return InvalidArgument(fmt::format("--isa must be avx2 or avx512, not '{}'", flags.isa));
}

Status ResolveCommunicator(const EngineFlags& flags, EngineSetup* setup) {
  if (flags.communicator != "in-place" && flags.communicator != "copying") {
    return InvalidArgument(
        fmt::format("--communicator must be in-place or copying, not '{}'", flags.communicator));
  }
  setup->options.copying_communicator = flags.communicator == "copying";
  return Status();
}

}  // namespace

std::vector<std::string> NormalizeArguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) arguments.push_back(NormalizeFlag(argv[i]));
  return arguments;
}

void AddEngineFlags(CLI::App& app, EngineFlags* flags) {
  app.add_option("MODEL", flags->model, "the model's folder");
  const char* group = "Model";
  app.add_option("--model", flags->model_option, "the model's folder, as a flag")->group(group);
  app.add_option("--served-model-name", flags->served_model_name,
                 "the name that clients use; the folder's last part if not given")
      ->group(group);
  app.add_option("--chat-template", flags->chat_template, "a file with the chat template to use")
      ->group(group);
  app.add_option("--context-length,--max-model-len", flags->context_length,
                 "tokens of prompt and answer together; the model's own if not given")
      ->group(group);

  app.add_option(
         "--load-format", flags->load_format,
         "auto or safetensors: the model's files; dummy: made-up weights, from config.json alone")
      ->group(group);
  app.add_option("--dummy-seed", flags->dummy_seed, "of made-up weights")->group(group);
  app.add_option("--dummy-acceptance", flags->dummy_acceptance,
                 "how often a draft of made-up weights is right, 0 to 1")
      ->group(group);

  group = "Layout";
  app.add_option("--tensor-parallel-size,--tp-size,--tp", flags->tp_size,
                 "ranks: 1, 2, 4, 8 or 16; -tp N is the same")
      ->group(group);
  app.add_flag("--enable-dp-attention", flags->enable_dp_attention,
               "divide the ranks into replicas with their own requests and KV cache")
      ->group(group);
  app.add_option("--dp-size,--dp", flags->dp_size,
                 "replicas, a divisor of the ranks; as many as ranks if not given")
      ->group(group);
  app.add_flag("--enable-expert-parallel", flags->enable_expert_parallel,
               "whole experts over all ranks, which is the only way here: always on")
      ->group(group);
  app.add_option("--communicator", flags->communicator,
                 "in-place: ranks read each other's rows; copying: private buffers per rank")
      ->group(group);
  app.add_option("--collective-timeout", flags->collective_timeout,
                 "seconds until a rank that does not come to a meeting is named as failed")
      ->group(group);
  app.add_option("--threads", flags->threads, "of all ranks together; one per core if not given")
      ->group(group);

  app.add_option("--isa", flags->isa,
                 "instruction set of the kernels, avx2 or avx512; the best there is if not given")
      ->group(group);

  group = "Speculation";
  app.add_option("--method", flags->method, "mtp: the model's own multi-token-prediction layer")
      ->group(group);
  app.add_option("--num-speculative-tokens", flags->num_speculative_tokens,
                 "drafts per step and sequence, 0 to 8; 0 is off")
      ->group(group);
  app.add_option("--speculative-draft-model-path,--speculative-draft", flags->draft_model,
                 "the folder of a separate export of the layer (NextN)")
      ->group(group);

  group = "Capacity";
  app.add_option("--max-num-seqs", flags->max_num_seqs, "running sequences per replica")
      ->group(group);
  app.add_option("--chunked-prefill-size", flags->chunked_prefill_size,
                 "prompt rows per step and replica")
      ->group(group);
  app.add_option("--max-step-rows", flags->max_step_rows,
                 "prompt rows per step over all replicas while any of them decodes")
      ->group(group);
  app.add_option("--max-total-tokens", flags->max_total_tokens, "KV tokens per replica")
      ->group(group);
  app.add_option("--mem-fraction-static,--gpu-memory-utilization", flags->memory_fraction,
                 "share of the machine's memory for weights, workspace and KV; 0.8 if not given")
      ->group(group);
  app.add_option("--request-timeout", flags->request_timeout,
                 "seconds until a request ends, finished or not; 0, the default, is never")
      ->group(group);
  app.add_option("--block-size", flags->block_size, "tokens per KV block")->group(group);
  app.add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                 "auto (bf16), bf16, fp8 (also fp8_e4m3) or fp32")
      ->group(group);
}

Result<EngineSetup> ResolveEngineFlags(const EngineFlags& flags) {
  EngineSetup setup;
  RETURN_IF_ERROR(ResolveModel(flags, &setup));
  RETURN_IF_ERROR(ResolveLayout(flags, &setup));
  RETURN_IF_ERROR(ResolveSpeculation(flags, &setup));
  RETURN_IF_ERROR(ResolveLoading(flags, &setup));
  RETURN_IF_ERROR(ResolveKvFormat(flags, &setup));
  RETURN_IF_ERROR(ResolveCapacity(flags, &setup));
  RETURN_IF_ERROR(ResolveIsa(flags, &setup));
  RETURN_IF_ERROR(ResolveCommunicator(flags, &setup));
  return setup;
}

}  // namespace tandem
