#include "cli/serve.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "cli/load.h"
#include "server/api_server.h"

namespace tandem {
namespace {

// Blocks the stop signals in this thread and those it starts, and waits for one of them.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);  // a client that has gone is an error of its write
  }

  void Wait() {
    int number = 0;
    sigwait(&set_, &number);
  }

  // Ends Wait() from another thread.
  void Raise() { kill(getpid(), SIGTERM); }

 private:
  sigset_t set_;
};

enum class Loading { kRunning, kDone, kFailed };

void Load(const CommandLine& line, ApiServer& server, StopSignals& stop,
          std::atomic<Loading>& state) {
  auto loaded = LoadForCommand(line, [&server](double fraction) { server.SetProgress(fraction); });
  if (!loaded.ok()) {
    LogError("{}", loaded.status().message());
    state = Loading::kFailed;
    return stop.Raise();
  }
  loaded->engine->Start();
  server.SetReady(std::move(loaded->model), std::move(loaded->engine));
  LogInfo("ready: http://{}:{}/v1", line.serve.host, server.port());
  state = Loading::kDone;
}

}  // namespace

int RunServe(const CommandLine& line) {
  StopSignals stop;
  ApiServerOptions options;
  options.http.host = line.serve.host;
  options.http.port = line.serve.port;
  ApiServer server(options);
  if (const Status status = server.Start(); !status.ok()) {
    LogError("{}", status.message());
    return 1;
  }
  LogInfo("listening on {} port {}; loading {}", line.serve.host, server.port(),
          line.engine.model_folder);
  std::atomic<Loading> state = Loading::kRunning;
  std::thread loader([&] { Load(line, server, stop, state); });
  stop.Wait();
  if (state == Loading::kRunning) {
    // Loading can't be cut short, and it holds nothing that outlives the process.
    LogInfo("stopped while loading");
    std::_Exit(0);
  }
  loader.join();
  if (state == Loading::kFailed) return 1;
  LogInfo("stopping");
  server.Stop();
  return 0;
}

}  // namespace tandem
