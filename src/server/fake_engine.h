// An engine for tests that computes nothing: it records requests, and the test emits their events.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace tandem {

// Outlives nothing: the server owns it and the test keeps a pointer while the server lives.
// Thread-safe.
class FakeEngine : public Engine {
 public:
  FakeEngine() {
    info_.vocab_size = 3072;
    info_.context_length = 200;
    info_.tp_size = info_.dp_size = info_.attn_tp_size = 1;
  }
  ~FakeEngine() override {
    for (const auto& [id, sink] : sinks_) {
      TokenEvent event;
      event.request_id = id;
      event.finish_reason = FinishReason::kCancelled;
      sink(event);
    }
  }

  const EngineInfo& info() const override { return info_; }
  void Start() override {}

  Status Submit(GenerationRequest request, EventSink sink) override {
    std::lock_guard lock(mutex_);
    if (refusal_) return *refusal_;
    sinks_[request.id] = std::move(sink);
    requests_.push_back(std::move(request));
    changed_.notify_all();
    return Status();
  }

  void Cancel(uint64_t id) override {
    std::lock_guard lock(mutex_);
    cancelled_.insert(id);
    changed_.notify_all();
  }

  EngineStatus status() const override {
    std::lock_guard lock(mutex_);
    return status_;
  }

  // Waits for the next request that the test has not seen.
  GenerationRequest NextRequest() {
    std::unique_lock lock(mutex_);
    Await(lock, [this] { return seen_ < requests_.size(); });
    return requests_[seen_++];
  }

  void AwaitCancel(uint64_t id) {
    std::unique_lock lock(mutex_);
    Await(lock, [this, id] { return cancelled_.contains(id); });
  }

  void Emit(TokenEvent event) {
    EventSink sink;
    {
      std::lock_guard lock(mutex_);
      sink = sinks_.at(event.request_id);
      if (event.finish_reason != FinishReason::kNone) sinks_.erase(event.request_id);
    }
    sink(std::move(event));
  }

  void Refuse(Status status) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(status);
  }

  void SetStatus(EngineStatus status) {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }

 private:
  template <typename Condition>
  void Await(std::unique_lock<std::mutex>& lock, Condition condition) {
    CHECK(changed_.wait_for(lock, std::chrono::seconds(30), condition));
  }

  EngineInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GenerationRequest> requests_;
  size_t seen_ = 0;
  std::map<uint64_t, EventSink> sinks_;
  std::set<uint64_t> cancelled_;
  std::optional<Status> refusal_;
  EngineStatus status_;
};

}  // namespace tandem
