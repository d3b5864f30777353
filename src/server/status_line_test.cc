#include "server/status_line.h"

#include <gtest/gtest.h>

#include <atomic>

#include "server/fake_engine.h"

namespace tandem {
namespace {

TEST(StatusLinesTest, ShowOneLinePerBusyReplica) {
  EngineInfo info;
  info.attn_tp_size = 2;
  EngineStatus before, now;
  before.replicas.resize(3);
  now.replicas.resize(3);
  before.replicas[0].verify_steps = 100;
  before.replicas[0].verify_emitted = 400;
  before.replicas[0].generated_tokens = 1000;
  now.replicas[0] = before.replicas[0];
  now.replicas[0].running = 3;
  now.replicas[0].kv_tokens_used = 1234;
  now.replicas[0].kv_tokens_total = 65536;
  now.replicas[0].verify_steps += 100;
  now.replicas[0].verify_emitted += 261;
  now.replicas[0].generated_tokens += 615;
  now.replicas[2].queued = 1;  // has not computed anything yet
  EXPECT_EQ(StatusLines(info, before, now, 5.0),
            (std::vector<std::string>{
                "DP0 TP0-1 | running 3, queued 0, KV 1234 of 65536 tokens (1 %), accept length "
                "2.61, 123 tokens/s",
                "DP2 TP4-5 | running 0, queued 1, KV 0 of 0 tokens (0 %), accept length -, 0 "
                "tokens/s"}));
}

TEST(StatusLinesTest, CountARequestThatCameAndWentBetween) {
  EngineInfo info;
  info.attn_tp_size = 1;
  EngineStatus now;
  now.replicas.resize(1);
  EXPECT_TRUE(StatusLines(info, {}, now, 5.0).empty());
  now.replicas[0].generated_tokens = 10;
  const auto lines = StatusLines(info, {}, now, 5.0);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].substr(0, 10), "DP0 TP0 | ");
}

// Says when it has been looked at a number of times.
class WatchedEngine : public FakeEngine {
 public:
  EngineStatus status() const override {
    looks_.fetch_add(1);
    looks_.notify_all();
    return FakeEngine::status();
  }
  void AwaitLooks(int count) const {
    for (int looks = looks_; looks < count; looks = looks_) looks_.wait(looks);
  }

 private:
  mutable std::atomic<int> looks_ = 0;
};

// What a reporter logs while it looks at `status` a few times.
std::string Logged(const EngineStatus& status) {
  WatchedEngine engine;
  engine.SetStatus(status);
  testing::internal::CaptureStderr();
  {
    const StatusReporter reporter(engine, std::chrono::milliseconds(1));
    engine.AwaitLooks(4);
  }
  return testing::internal::GetCapturedStderr();
}

TEST(StatusReporterTest, LogsWhileBusyAndIsSilentWhileIdle) {
  EngineStatus status;
  status.replicas.resize(2);
  EXPECT_EQ(Logged(status), "");
  status.replicas[1].running = 2;
  const std::string busy = Logged(status);
  EXPECT_NE(busy.find("DP1 TP1 | running 2, queued 0"), std::string::npos) << busy;
  EXPECT_EQ(busy.find("DP0"), std::string::npos) << busy;
}

}  // namespace
}  // namespace tandem
