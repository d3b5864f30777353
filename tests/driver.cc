#include "driver.h"

#include <condition_variable>
#include <mutex>

#include "base/log.h"

namespace tandem {

std::vector<Answer> Answers(Engine& engine, std::vector<GenerationRequest> requests, bool start) {
  std::mutex mutex;
  std::condition_variable done;
  size_t open = requests.size();
  std::vector<Answer> answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = i;
    const Status status = engine.Submit(requests[i], [&, i](TokenEvent event) {
      const std::lock_guard lock(mutex);
      Answer& answer = answers[i];
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(answer.tokens, event.tokens);
      append(answer.logprobs, event.logprobs);
      append(answer.prompt_logprobs, event.prompt_logprobs);
      if (!event.tokens.empty()) answer.event_steps.push_back(event.step);
      if (event.finish_reason == FinishReason::kNone) return;
      answer.finish_reason = event.finish_reason;
      answer.error = event.error;
      answer.statistics = event.statistics;
      if (--open == 0) done.notify_one();
    });
    if (!status.ok()) {
      LogError("request {} was refused: {}", i, status.message());
      std::abort();
    }
  }
  if (start) engine.Start();
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return open == 0; });
  return answers;
}

std::unique_ptr<Engine> LoadOrDie(const std::string& folder, const EngineOptions& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::Load(folder, options);
  if (!engine.ok()) {
    LogError("cannot load {}: {}", folder, engine.status().message());
    std::abort();
  }
  return std::move(engine).value();
}

std::string TinyModel() {
  return std::string(TANDEM_SOURCE_DIR) + "/models/tandem-tiny";
}
std::string OddModel() {
  return std::string(TANDEM_SOURCE_DIR) + "/models/v3-odd-mtp";
}
std::string GoldenFile(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/golden/" + name;
}

}  // namespace tandem
