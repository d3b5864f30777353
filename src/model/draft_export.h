// A separate folder with the MTP module of a model (a "NextN export"): its tensors are those of
// layer 0, embedding and head may be the target's.
#pragma once

#include <string>

#include "base/status.h"
#include "model/config.h"

namespace tandem {

// Reads `draft_folder`/config.json and checks that a module with it fits the target: the sizes, and
// every number that the target's passes use for all layers. Errors: those of LoadModelConfig, else
// kInvalidArgument naming the field and both values.
Result<ModelConfig> LoadDraftConfig(const std::string& draft_folder, const ModelConfig& target);

}  // namespace tandem
