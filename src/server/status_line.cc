#include "server/status_line.h"

#include <fmt/format.h>

#include "base/log.h"

namespace tandem {
namespace {

std::string Ranks(int replica, int attn_tp_size) {
  const int first = replica * attn_tp_size;
  if (attn_tp_size <= 1) return fmt::format("{}", first);
  return fmt::format("{}-{}", first, first + attn_tp_size - 1);
}

std::string StatusLine(const EngineInfo& info, int replica, const ReplicaStatus& before,
                       const ReplicaStatus& now, double seconds) {
  const int64_t verify_steps = now.verify_steps - before.verify_steps;
  const int64_t emitted = now.verify_emitted - before.verify_emitted;
  const int64_t tokens = now.generated_tokens - before.generated_tokens;
  const int64_t share =
      now.kv_tokens_total > 0 ? now.kv_tokens_used * 100 / now.kv_tokens_total : 0;
  const std::string accept_length =
      verify_steps > 0 ? fmt::format("{:.2f}", static_cast<double>(emitted) / verify_steps) : "-";
  return fmt::format(
      "DP{} TP{} | running {}, queued {}, KV {} of {} tokens ({} %), accept length {}, {:.0f} "
      "tokens/s",
      replica, Ranks(replica, info.attn_tp_size), now.running, now.queued, now.kv_tokens_used,
      now.kv_tokens_total, share, accept_length, seconds > 0 ? tokens / seconds : 0.0);
}

}  // namespace

std::vector<std::string> StatusLines(const EngineInfo& info, const EngineStatus& before,
                                     const EngineStatus& now, double seconds) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < now.replicas.size(); ++i) {
    const ReplicaStatus old = i < before.replicas.size() ? before.replicas[i] : ReplicaStatus();
    const ReplicaStatus& replica = now.replicas[i];
    const bool busy = replica.running > 0 || replica.queued > 0 ||
                      replica.generated_tokens != old.generated_tokens;
    if (busy) lines.push_back(StatusLine(info, static_cast<int>(i), old, replica, seconds));
  }
  return lines;
}

StatusReporter::StatusReporter(const Engine& engine, std::chrono::milliseconds interval)
    : engine_(engine), interval_(interval), thread_([this] { Loop(); }) {}

StatusReporter::~StatusReporter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void StatusReporter::Loop() {
  using Clock = std::chrono::steady_clock;
  EngineStatus before = engine_.status();
  Clock::time_point then = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, interval_, [this] { return stopping_; })) {
    EngineStatus now = engine_.status();
    const Clock::time_point time = Clock::now();
    const double seconds = std::chrono::duration<double>(time - then).count();
    for (const std::string& line : StatusLines(engine_.info(), before, now, seconds)) {
      LogLine(LogLevel::kInfo, line);
    }
    before = std::move(now);
    then = time;
  }
}

}  // namespace tandem
