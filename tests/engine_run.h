// Whole runs of an engine with everything that the hooks saw, and the requests that such runs are
// made of; for tests only.
#pragma once

#include <bit>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "driver.h"

namespace tandem {

// Keeps what hooks report. Outlives the engine; read after its end.
class Observer {
 public:
  EngineHooks Hooks(bool trace_collectives = false) {
    EngineHooks hooks;
    hooks.trace_collectives = trace_collectives;
    hooks.on_step = [this](const StepObservation& observation) {
      const std::lock_guard lock(mutex_);
      steps_[observation.step][observation.rank] = observation;
    };
    return hooks;
  }

  // [step][rank]
  const std::map<int64_t, std::map<int, StepObservation>>& steps() const { return steps_; }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::map<int, StepObservation>> steps_;
};

struct EngineRun {
  std::vector<Answer> answers;
  std::map<int64_t, std::map<int, StepObservation>> steps;
};

inline EngineRun RunEngine(const std::string& folder, EngineOptions options,
                           const std::vector<GenerationRequest>& requests,
                           bool trace_collectives = false) {
  Observer observer;
  options.hooks = observer.Hooks(trace_collectives);
  auto engine = LoadOrDie(folder, options);
  EngineRun run;
  run.answers = Answers(*engine, requests);
  engine.reset();  // the last step's observations have come
  run.steps = observer.steps();
  return run;
}

inline EngineOptions TestOptions(int tp, int dp, int k) {
  EngineOptions options;
  options.tp_size = tp;
  options.dp_size = dp;
  options.num_draft_tokens = k;
  options.num_threads = tp;
  options.kv_format = LatentFormat::kFp32;
  options.max_step_rows = 64;  // given, so that no run depends on the machine's speed
  return options;
}

inline GenerationRequest GreedyRequest(std::vector<int32_t> prompt, int32_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

inline std::vector<int32_t> RandomPrompt(int32_t size, int32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(size);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % vocab);
  return prompt;
}

// Tokens and all bits of all log-probabilities, readable where they differ.
inline std::string Bits(const Answer& answer) {
  std::string text;
  for (const int32_t token : answer.tokens) text += std::to_string(token) + " ";
  for (const auto& list : {answer.logprobs, answer.prompt_logprobs}) {
    for (const TokenLogprob& logprob : list) {
      text += "| " + std::to_string(std::bit_cast<uint32_t>(logprob.logprob)) + " ";
      for (const auto& [token, value] : logprob.top) {
        text += std::to_string(token) + ":" + std::to_string(std::bit_cast<uint32_t>(value)) + " ";
      }
    }
  }
  return text;
}

}  // namespace tandem
