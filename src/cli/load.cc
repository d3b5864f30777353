#include "cli/load.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/log.h"

namespace tandem {

Result<LoadedModel> LoadForCommand(const CommandLine& line, const Engine::Progress& progress) {
  for (const std::string& note : line.engine.notes) LogLine(LogLevel::kInfo, note);
  const std::string& folder = line.engine.model_folder;
  ASSIGN_OR_RETURN(ServedModel model, LoadServedModel(folder, line.engine_flags.served_model_name,
                                                      line.engine_flags.chat_template));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                   Engine::Load(folder, line.engine.options, progress));
  const EngineInfo& info = engine->info();
  // A request without max_tokens takes what is left, which must fit the pool too.
  model.context_length =
      static_cast<int32_t>(std::min<int64_t>(info.context_length, info.kv_tokens_per_replica));
  std::istringstream block(info.start_block);
  for (std::string text; std::getline(block, text);) LogLine(LogLevel::kInfo, text);
  return LoadedModel{std::move(model), std::move(engine)};
}

}  // namespace tandem
