// config.json, and the same bytes as generation_config.json; what follows from a good config.
#include <cmath>

#include "memory_file.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::FuzzFolder folder;
  folder.Write("config.json", data, size);
  folder.Write("generation_config.json", data, size);
  const auto config = tandem::LoadModelConfig(folder.path());
  tandem::ModelConfig defaults;
  defaults.vocab_size = 1000;
  (void)tandem::LoadGenerationConfig(folder.path(), config.ok() ? *config : defaults);
  if (!config.ok()) return 0;
  for (const float frequency : config->RopeInvFreq()) {
    if (!std::isfinite(frequency)) std::abort();
  }
  if (!std::isfinite(config->SoftmaxScale()) || !std::isfinite(config->RopeMscale())) std::abort();
  if (config->num_experts_per_tok > config->n_routed_experts) std::abort();
  return 0;
}
