#include "cli/generate.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/generate_input.h"
#include "cli/generate_output.h"
#include "cli/load.h"
#include "engine/row_trace.h"
#include "server/api_request.h"

namespace tandem {
namespace {

// Hands token events from the engine's threads to the one that prints.
class EventQueue {
 public:
  void Push(TokenEvent event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_one();
  }

  TokenEvent Pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !events_.empty(); });
    TokenEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TokenEvent> events_;
};

void PrintError(const std::string& message) {
  std::fprintf(stderr, "tandem: %s\n", message.c_str());
}

// The requests in input order; ids are their indices.
Result<std::vector<ApiRequest>> ReadRequests(const std::vector<InputLine>& lines,
                                             const ServedModel& model) {
  std::vector<ApiRequest> requests;
  for (const InputLine& line : lines) {
    const auto parsed = ParseJson(line.json);
    if (!parsed.ok()) return InvalidArgument(line.where + ": " + parsed.status().message());
    ApiRequest request;
    if (const auto error = ReadApiRequest(*parsed, ApiKind::kLine, model, &request)) {
      return InvalidArgument(line.where + ": " + error->message);
    }
    request.generation.id = requests.size();
    requests.push_back(std::move(request));
  }
  return requests;
}

// Prints in input order, each as soon as those before it are done. Returns false if a request
// failed.
bool Collect(std::vector<GenerateOutput>& outputs, EventQueue& events, bool json) {
  bool all_ok = true;
  for (size_t next = 0; next < outputs.size();) {
    const TokenEvent event = events.Pop();
    outputs[event.request_id].Take(event);
    for (; next < outputs.size() && outputs[next].done(); ++next) {
      const GenerateOutput& output = outputs[next];
      if (output.failed()) {
        PrintError(fmt::format("request {}: {}", next, output.error()));
        all_ok = false;
        continue;
      }
      std::printf("%s\n", json ? output.JsonLine().c_str() : output.text().c_str());
      std::fflush(stdout);
      if (!json) std::fprintf(stderr, "%s\n", output.StatisticsLine().c_str());
    }
  }
  return all_ok;
}

bool WriteTrace(const RowTrace& trace, const std::string& path) {
  std::ofstream file(path);
  file << trace.Text();
  file.close();
  if (!file) PrintError("cannot write " + path);
  return !file.fail();
}

}  // namespace

int RunGenerate(const CommandLine& command_line) {
  CommandLine line = command_line;
  RowTrace trace;  // outlives the engine
  if (!line.generate.trace_rows.empty()) line.engine.options.hooks.row_tracer = &trace;
  const auto lines = ReadInput(line.generate);
  if (!lines.ok()) {
    PrintError(lines.status().message());
    return 2;
  }
  EventQueue events;
  auto loaded = LoadForCommand(line, nullptr);
  if (!loaded.ok()) {
    PrintError(loaded.status().message());
    return 1;
  }
  const auto requests = ReadRequests(*lines, loaded->model);
  if (!requests.ok()) {
    PrintError(requests.status().message());
    return 2;
  }
  std::vector<GenerateOutput> outputs;
  for (const ApiRequest& request : *requests) {
    const size_t index = outputs.size();
    outputs.emplace_back(index, request, *loaded->model.tokenizer);
    const Status status = loaded->engine->Submit(
        request.generation, [&events](TokenEvent event) { events.Push(std::move(event)); });
    if (!status.ok()) {
      PrintError((*lines)[index].where + ": " + status.message());
      return 2;
    }
  }
  loaded->engine->Start();
  bool ok = Collect(outputs, events, line.generate.json);
  loaded->engine.reset();
  if (!line.generate.trace_rows.empty()) ok &= WriteTrace(trace, line.generate.trace_rows);
  return ok ? 0 : 1;
}

}  // namespace tandem
