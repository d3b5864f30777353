// The status lines that a busy server logs every few seconds, one per replica. No HTTP.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace tandem {

// One line per replica that has requests or generated tokens since `before`, over an interval of
// `seconds`. `before` may be empty (the start); replicas are ranks [d * attn_tp_size, (d + 1) *
// attn_tp_size).
std::vector<std::string> StatusLines(const EngineInfo& info, const EngineStatus& before,
                                     const EngineStatus& now, double seconds);

// Logs the status lines of `engine` every `interval` while it is busy.
class StatusReporter {
 public:
  // REQUIRES: `engine` outlives this.
  StatusReporter(const Engine& engine, std::chrono::milliseconds interval);
  ~StatusReporter();

 private:
  void Loop();

  const Engine& engine_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem
