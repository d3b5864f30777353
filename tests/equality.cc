// The promise, as a command: one text, whatever k, layout, chunk, batch, and communicator. Runs the
// cells of a scenario file and compares token ids, all bits of every log-probability, and accepted
// counts per step with the plain path (one rank, no speculation; for acceptance: one rank with the
// same k).
//
//   equality SCENARIO.json [--covers N] [--all] [--cell N]
//
// A scenario with "pool_share": N gives each run a KV pool of an N-th of what its requests need (at
// least the largest one's), and must then count preemptions of every kind over its cells.
//
// By default a pairwise cover of the cells, with --covers several different ones; --all runs every
// cell, --cell one of them by its number.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "driver.h"
#include "engine/row_trace.h"

namespace tandem {
namespace {

using Json = nlohmann::json;
using Cell = std::vector<int>;  // one value index per dimension

const std::vector<std::string> kDimensions = {"k",     "layout",   "chunk",
                                              "batch", "sampling", "communicator"};

// The replicas' status after the last step, which is published just after the last answer.
std::vector<ReplicaStatus> DrainedStatus(const Engine& engine) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto in_use = [](const ReplicaStatus& replica) {
    return replica.running + replica.kv_tokens_used > 0;
  };
  while (true) {
    std::vector<ReplicaStatus> replicas = engine.status().replicas;
    const bool drained = std::none_of(replicas.begin(), replicas.end(), in_use);
    if (drained || std::chrono::steady_clock::now() > deadline) return replicas;
    std::this_thread::yield();
  }
}

class Scenario {
 public:
  explicit Scenario(const std::string& path) {
    std::ifstream file(path);
    json_ = Json::parse(file);
    for (const std::string& name : kDimensions) {
      values_.push_back(json_["dimensions"][name].get<std::vector<Json>>());
    }
  }

  int64_t num_cells() const {
    int64_t cells = 1;
    for (const auto& values : values_) cells *= static_cast<int64_t>(values.size());
    return cells;
  }
  Cell CellOf(int64_t number) const {
    Cell cell;
    for (const auto& values : values_) {
      cell.push_back(static_cast<int>(number % values.size()));
      number /= static_cast<int64_t>(values.size());
    }
    return cell;
  }
  int64_t NumberOf(const Cell& cell) const {
    int64_t number = 0;
    for (size_t d = values_.size(); d-- > 0;) {
      number = number * static_cast<int64_t>(values_[d].size()) + cell[d];
    }
    return number;
  }
  const std::vector<std::vector<Json>>& values() const { return values_; }
  const Json& Value(const Cell& cell, int dimension) const {
    return values_[dimension][cell[dimension]];
  }

  std::string Name(const Cell& cell) const {
    const Json& layout = Value(cell, 1);
    return fmt::format("cell {}: k={} tp{} dp{} chunk={} batch={} {} {}", NumberOf(cell),
                       Value(cell, 0).dump(), layout[0].dump(), layout[1].dump(),
                       Value(cell, 2).dump(), Value(cell, 3).dump(), Value(cell, 4).dump(),
                       Value(cell, 5).get<std::string>());
  }

  EngineOptions Options(const Cell& cell) const {
    EngineOptions options;
    options.num_draft_tokens = Value(cell, 0);
    options.tp_size = Value(cell, 1)[0];
    options.dp_size = Value(cell, 1)[1];
    options.chunked_prefill_size = Value(cell, 2);
    options.max_num_seqs = Value(cell, 3);
    options.copying_communicator = Value(cell, 5) == "copying";
    options.kv_format = json_["kv"] == "fp32"  ? LatentFormat::kFp32
                        : json_["kv"] == "fp8" ? LatentFormat::kFp8
                                               : LatentFormat::kBf16;
    options.max_total_tokens = 4096;
    options.max_step_rows = 256;  // the same on every machine
    // Block sizes are no dimension of their own but must not matter either.
    options.block_size = 1 + static_cast<int>(NumberOf(cell) % 3) * 15;
    return options;
  }

  std::vector<GenerationRequest> Requests(const Cell& cell) const {
    std::map<std::string, std::vector<int32_t>> golden;
    std::ifstream file(GoldenFile("generation.json"));
    for (const Json& item : Json::parse(file)) {
      golden[item["name"]] = item["prompt"].get<std::vector<int32_t>>();
    }
    const Json& sampling = Value(cell, 4);
    std::vector<GenerationRequest> requests;
    for (const Json& item : json_["requests"]) {
      GenerationRequest request;
      if (item.contains("golden")) {
        request.prompt = golden.at(item["golden"].get<std::string>());
      } else {
        std::mt19937 random(static_cast<uint32_t>(requests.size()) + 1);
        for (int i = 0; i < item["random_tokens"].get<int>(); ++i) {
          request.prompt.push_back(static_cast<int32_t>(random() % 300));
        }
      }
      request.max_tokens = item["max_tokens"];
      request.arrival_step = item.value("arrival_step", 0);
      request.sampling.temperature = sampling["temperature"];
      request.sampling.top_p = sampling.value("top_p", 1.0f);
      request.sampling.seed = 1000 + requests.size();
      request.stop_token_ids = json_["stop_token_ids"].get<std::vector<int32_t>>();
      request.logprobs = json_["logprobs"];
      requests.push_back(request);
    }
    return requests;
  }

  // `tight`: with the scenario's small pool; the plain path has room for all.
  std::vector<Answer> Run(const Cell& cell, bool tight, ReplicaStatus* preempted = nullptr,
                          RowTracer* tracer = nullptr) const {
    EngineOptions options = Options(cell);
    options.hooks.row_tracer = tracer;
    if (tight && has_tight_pool()) {
      options.max_total_tokens = TightPool(Requests(cell), options);
    }
    const std::string folder =
        std::string(TANDEM_SOURCE_DIR) + "/" + json_["model"].get<std::string>();
    const std::unique_ptr<Engine> engine = LoadOrDie(folder, options);
    std::vector<Answer> answers = Answers(*engine, Requests(cell));
    for (const ReplicaStatus& replica : DrainedStatus(*engine)) {
      if (replica.kv_tokens_used != 0) {
        fmt::print("blocks for {} tokens are not free at the end\n", replica.kv_tokens_used);
        answers.clear();  // equal to nothing
      }
      if (preempted == nullptr) continue;
      preempted->preempted_prefills += replica.preempted_prefills;
      preempted->preempted_windows += replica.preempted_windows;
      preempted->preempted_twice += replica.preempted_twice;
    }
    return answers;
  }

  bool has_tight_pool() const { return json_.contains("pool_share"); }

  // KV tokens per replica: a share of what the requests need, but room for the largest of them.
  int64_t TightPool(const std::vector<GenerationRequest>& requests,
                    const EngineOptions& options) const {
    int64_t needed = 0, largest = 0;
    for (const GenerationRequest& request : requests) {
      const int64_t tokens =
          CeilDiv(static_cast<int64_t>(request.prompt.size()) + request.max_tokens,
                  options.block_size) *
          options.block_size;
      needed += tokens;
      largest = std::max(largest, tokens);
    }
    return std::max(largest, needed / json_["pool_share"].get<int64_t>() / options.dp_size);
  }

  // One rank, in-place, the largest chunk and batch; k = 0 unless kept.
  Cell PlainCell(const Cell& cell, bool keep_k) const {
    Cell plain = cell;
    if (!keep_k) plain[0] = 0;
    plain[1] = 0;
    plain[2] = static_cast<int>(values_[2].size()) - 1;
    plain[3] = 0;
    plain[5] = 0;
    return plain;
  }

 private:
  Json json_;
  std::vector<std::vector<Json>> values_;
};

// Cells that hold every pair of values of every two dimensions: the next cell is the one, of some
// drawn at random with a fixed seed, that covers most pairs still open.
std::vector<Cell> PairwiseCover(const Scenario& scenario, uint32_t seed) {
  using Pair = std::array<int, 4>;
  const auto& values = scenario.values();
  const auto pairs_of = [&](const Cell& cell) {
    std::vector<Pair> pairs;
    for (int a = 0; a < static_cast<int>(cell.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(cell.size()); ++b) {
        pairs.push_back({a, cell[a], b, cell[b]});
      }
    }
    return pairs;
  };
  std::set<Pair> open;
  for (int64_t n = 0; n < scenario.num_cells(); ++n) {
    for (const Pair& pair : pairs_of(scenario.CellOf(n))) open.insert(pair);
  }
  std::mt19937 random(seed);
  std::vector<Cell> cover;
  while (!open.empty()) {
    Cell best;
    size_t best_count = 0;
    for (int tries = 0; tries < 60; ++tries) {
      Cell cell(values.size());
      for (size_t d = 0; d < values.size(); ++d) {
        cell[d] = static_cast<int>(random() % values[d].size());
      }
      const Pair& wanted = *std::next(open.begin(), random() % open.size());
      cell[wanted[0]] = wanted[1];
      cell[wanted[2]] = wanted[3];
      size_t count = 0;
      for (const Pair& pair : pairs_of(cell)) count += open.contains(pair);
      if (count > best_count) {
        best = cell;
        best_count = count;
      }
    }
    for (const Pair& pair : pairs_of(best)) open.erase(pair);
    cover.push_back(best);
  }
  return cover;
}

bool SameBits(const TokenLogprob& a, const TokenLogprob& b) {
  if (a.token != b.token ||
      std::bit_cast<uint32_t>(a.logprob) != std::bit_cast<uint32_t>(b.logprob)) {
    return false;
  }
  if (a.top.size() != b.top.size()) return false;
  for (size_t i = 0; i < a.top.size(); ++i) {
    if (a.top[i].first != b.top[i].first) return false;
    if (std::bit_cast<uint32_t>(a.top[i].second) != std::bit_cast<uint32_t>(b.top[i].second)) {
      return false;
    }
  }
  return true;
}

// What differs first, or empty.
std::string Difference(const std::vector<Answer>& expected, const std::vector<Answer>& got) {
  if (expected.empty() || got.size() != expected.size()) return "no answers";
  for (size_t i = 0; i < expected.size(); ++i) {
    const Answer &a = expected[i], &b = got[i];
    if (a.tokens != b.tokens) {
      size_t at = 0;
      while (at < a.tokens.size() && at < b.tokens.size() && a.tokens[at] == b.tokens[at]) ++at;
      return fmt::format("request {}: token {} differs", i, at);
    }
    if (a.finish_reason != b.finish_reason) return fmt::format("request {}: finish reason", i);
    if (a.logprobs.size() != a.tokens.size() || b.logprobs.size() != b.tokens.size()) {
      return fmt::format("request {}: {} log-probabilities for {} tokens", i, b.logprobs.size(),
                         b.tokens.size());
    }
    for (size_t t = 0; t < a.logprobs.size(); ++t) {
      if (!SameBits(a.logprobs[t], b.logprobs[t])) {
        return fmt::format("request {}: log-probability of token {} differs: {} and {}", i, t,
                           a.logprobs[t].logprob, b.logprobs[t].logprob);
      }
    }
  }
  return "";
}

class Runner {
 public:
  explicit Runner(const std::string& path) : scenario_(path) {}

  bool RunCell(const Cell& cell) {
    const std::vector<Answer> answers = scenario_.Run(cell, true, &preempted_);
    const std::vector<Answer>& plain = Reference(scenario_.PlainCell(cell, false));
    std::string difference = Difference(plain, answers);
    const std::vector<Answer>& same_k = Reference(scenario_.PlainCell(cell, true));
    // Preempted or not: drafts start again at the row where they were dropped.
    for (size_t i = 0; i < answers.size() && difference.empty(); ++i) {
      if (answers[i].statistics.accepted_per_step != same_k[i].statistics.accepted_per_step) {
        difference = fmt::format("request {}: accepted counts per step differ", i);
      }
    }
    fmt::print("{} {}\n", difference.empty() ? "equal " : "DIFFER", scenario_.Name(cell));
    if (!difference.empty()) Explain(cell, difference);
    std::fflush(stdout);
    return difference.empty();
  }

  const Scenario& scenario() const { return scenario_; }
  const ReplicaStatus& preempted() const { return preempted_; }

 private:
  const std::vector<Answer>& Reference(const Cell& cell) {
    const auto [it, added] = references_.try_emplace(cell);
    if (added) it->second = scenario_.Run(cell, false);
    return it->second;
  }

  void Explain(const Cell& cell, const std::string& difference) {
    RowTrace reference, other;
    scenario_.Run(scenario_.PlainCell(cell, true), false, nullptr, &reference);
    scenario_.Run(cell, true, nullptr, &other);
    fmt::print("  {}; first differing row: {}\n", difference,
               RowTrace::FirstDifference(reference, other).value_or("none"));
  }

  Scenario scenario_;
  ReplicaStatus preempted_;  // sums over all cells
  std::map<Cell, std::vector<Answer>> references_;
};

int Main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: equality SCENARIO.json [--covers N] [--all] [--cell N]\n");
    return 2;
  }
  Runner runner(argv[1]);
  const Scenario& scenario = runner.scenario();
  std::vector<Cell> cells;
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "--all") {
    for (int64_t n = 0; n < scenario.num_cells(); ++n) cells.push_back(scenario.CellOf(n));
  } else if (mode == "--cell" && argc > 3) {
    cells.push_back(scenario.CellOf(std::stoll(argv[3])));
  } else {
    const int covers = mode == "--covers" && argc > 3 ? std::stoi(argv[3]) : 1;
    std::set<Cell> distinct;
    for (int seed = 1; seed <= covers; ++seed) {
      for (const Cell& cell : PairwiseCover(scenario, static_cast<uint32_t>(seed))) {
        if (distinct.insert(cell).second) cells.push_back(cell);
      }
    }
  }
  int failed = 0;
  for (const Cell& cell : cells) failed += runner.RunCell(cell) ? 0 : 1;
  fmt::print("{} of {} cells equal ({} in all)\n", cells.size() - failed, cells.size(),
             scenario.num_cells());
  if (!scenario.has_tight_pool()) return failed == 0 ? 0 : 1;
  const ReplicaStatus& preempted = runner.preempted();
  fmt::print("preempted: {} in a prompt, {} in a window, {} a second time\n",
             preempted.preempted_prefills, preempted.preempted_windows, preempted.preempted_twice);
  const bool all_kinds = preempted.preempted_prefills > 0 && preempted.preempted_windows > 0 &&
                         preempted.preempted_twice > 0;
  return failed == 0 && (all_kinds || cells.size() == 1) ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}
