// Reading the rotary embedding's part of config.json. For config.cc only.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace tandem {

// Reads rope_theta and rope_scaling, or rope_parameters, transformers 5's name for both together.
// A file may hold both spellings if they say the same. Errors are left in `fields`.
void ReadRope(const ConfigFields& fields, ModelConfig& config);

}  // namespace tandem
