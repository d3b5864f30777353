#include "cli/load.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "cli/progress_bar.h"

namespace tandem {

Result<LoadedModel> LoadForCommand(const CommandLine& line, const Engine::Progress& progress) {
  for (const std::string& note : line.engine.notes) LogLine(LogLevel::kInfo, note);
  const std::string& folder = line.engine.model_folder;
  ASSIGN_OR_RETURN(ServedModel model, LoadServedModel(folder, line.engine_flags.served_model_name,
                                                      line.engine_flags.chat_template,
                                                      line.engine.options.dummy_weights));
  std::optional<ProgressBar> bar(std::in_place);
  auto loaded = Engine::Load(folder, line.engine.options, [&](double fraction) {
    bar->Show(fraction);
    if (progress) progress(fraction);
  });
  bar.reset();  // the log goes on below it
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, std::move(loaded));
  const EngineInfo& info = engine->info();
  // A request without max_tokens takes what is left, which must fit the pool too.
  model.context_length =
      static_cast<int32_t>(std::min<int64_t>(info.context_length, info.kv_tokens_per_replica));
  std::istringstream block(info.start_block);
  for (std::string text; std::getline(block, text);) LogLine(LogLevel::kInfo, text);
  return LoadedModel{std::move(model), std::move(engine)};
}

}  // namespace tandem
