// Loading a model for a command: its text side and its engine, with the start block logged.
#pragma once

#include <memory>

#include "cli/command_line.h"
#include "engine/engine.h"
#include "server/served_model.h"

namespace tandem {

struct LoadedModel {
  ServedModel model;
  std::unique_ptr<Engine> engine;  // not started
};

// Errors: what the files or the options have wrong.
Result<LoadedModel> LoadForCommand(const CommandLine& line, const Engine::Progress& progress);

}  // namespace tandem
