// The layout, speculation and capacity flags that `serve` and `generate` share, and the spellings
// of them that other engines' users know.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Flags as given; absent ones are nullopt or empty.
struct EngineFlags {
  std::string model;         // positional MODEL
  std::string model_option;  // --model
  std::string served_model_name;
  std::string chat_template;
  std::optional<int> tp_size;
  std::optional<int> dp_size;
  bool enable_dp_attention = false;
  bool enable_expert_parallel = false;
  std::string method;
  std::optional<int> num_speculative_tokens;
  std::string draft_model;
  std::string load_format = "auto";
  std::optional<int64_t> dummy_seed;
  std::optional<double> dummy_acceptance;
  std::optional<double> memory_fraction;
  std::optional<int> block_size;
  std::string kv_cache_dtype = "auto";
  std::optional<int> max_num_seqs;
  std::optional<int> chunked_prefill_size;
  std::optional<int> max_step_rows;
  std::optional<int64_t> max_total_tokens;
  std::optional<int> context_length;
  std::optional<int> threads;
  std::optional<int> collective_timeout;
  std::optional<double> request_timeout;
  std::string isa;
  std::string communicator = "in-place";
};

// What the flags mean.
struct EngineSetup {
  std::string model_folder;
  EngineOptions options;
  std::vector<std::string> notes;  // lines that tell what was decided for the user
};

// The command line with every flag in the spelling that the parser knows: -tp as
// --tensor-parallel-size, underscores in flag names as dashes. The program's name is left out.
std::vector<std::string> NormalizeArguments(int argc, const char* const* argv);

// REQUIRES: `flags` outlives the parsing.
void AddEngineFlags(CLI::App& app, EngineFlags* flags);

// Errors: flags that contradict each other or are not offered, with what to say instead.
Result<EngineSetup> ResolveEngineFlags(const EngineFlags& flags);

}  // namespace tandem
