// Runs a list of requests through an engine and collects what came back; for tests only.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace tandem {

// Everything one request was answered with.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
  RequestStatistics statistics;
  std::vector<int64_t> event_steps;  // the step of each event that carried tokens
};

// Submits all requests (ids are set to their index), starts the engine if `start`, and waits for
// the last answer.
std::vector<Answer> Answers(Engine& engine, std::vector<GenerationRequest> requests,
                            bool start = true);

// Engine::Load or a failed test with the reason.
std::unique_ptr<Engine> LoadOrDie(const std::string& folder, const EngineOptions& options);

// Folders of the project.
std::string TinyModel();
std::string OddModel();
std::string GoldenFile(const std::string& name);

}  // namespace tandem
