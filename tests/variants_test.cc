// The family's small random models against the reference's FP32 logits (models/README.md): V2 and
// V3 routers, with and without q_lora_rank, FP8 blocks, the MTP module's own logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>

#include "driver.h"
#include "engine/sampler.h"

namespace tandem {
namespace {

// Of the largest logit's size, or of a log-probability.
constexpr double kTolerance = 2e-3;

struct Variant {
  const char* name;
  int tp, dp;
};

// Keeps the raw logits that the target's rows and the first draft pass were sampled from.
class LogitRecorder : public RowTracer {
 public:
  using Rows = std::map<std::pair<uint64_t, int64_t>, std::vector<float>>;  // request, position

  void Row(const OpTag& op, uint64_t request_id, int64_t position, int, const void* data,
           size_t bytes) override {
    const std::string name = op.name;
    if (name != "sample" && !(name == "sample_draft" && op.pass == 1)) return;
    std::vector<float> row(bytes / sizeof(float));
    std::memcpy(row.data(), data, bytes);
    const std::lock_guard lock(mutex_);
    (name == "sample" ? target : draft)[{request_id, position}] = std::move(row);
  }

  Rows target, draft;

 private:
  std::mutex mutex_;
};

class VariantsTest : public testing::TestWithParam<Variant> {
 protected:
  static std::string Folder() {
    return std::string(TANDEM_SOURCE_DIR) + "/models/" + GetParam().name;
  }

  static void Run(int k, const std::vector<GenerationRequest>& requests, LogitRecorder& recorder) {
    EngineOptions options;
    options.tp_size = GetParam().tp;
    options.dp_size = GetParam().dp;
    options.num_threads = GetParam().tp;
    options.num_draft_tokens = k;
    options.kv_format = LatentFormat::kFp32;
    options.hooks.row_tracer = &recorder;
    const auto engine = LoadOrDie(Folder(), options);
    for (const Answer& answer : Answers(*engine, requests)) ASSERT_EQ(answer.error, "");
  }
};

GenerationRequest Greedy(std::vector<int32_t> prompt, int32_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

// All logits within kTolerance of the largest one's size.
void ExpectLogits(const std::vector<double>& golden, const std::vector<float>& row) {
  ASSERT_EQ(row.size(), golden.size());
  double largest = 0, worst = 0;
  for (const double logit : golden) largest = std::max(largest, std::abs(logit));
  for (size_t i = 0; i < row.size(); ++i) worst = std::max(worst, std::abs(row[i] - golden[i]));
  EXPECT_LE(worst, kTolerance * largest);
}

// `golden`: the best (id, log-probability) pairs.
void ExpectBest(const nlohmann::json& golden, const std::vector<float>& row) {
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  for (const auto& [token, logprob] : golden.get<std::vector<std::pair<int, double>>>()) {
    EXPECT_NEAR(row.at(token) - std::log(sum), logprob, kTolerance) << "token " << token;
  }
}

TEST_P(VariantsTest, GoldenLogits) {
  std::ifstream file(Folder() + "/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  LogitRecorder recorder;
  std::vector<GenerationRequest> requests;
  for (const auto& item : cases) {
    requests.push_back(Greedy(item.at("tokens"), 1));
    requests.back().prompt_logprobs = 0;  // logits of every row
  }
  Run(0, requests, recorder);

  size_t compared = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto row_at = [&](int64_t position) { return recorder.target.at({i, position}); };
    if (cases[i].contains("logits")) {
      for (const auto& [position, logits] : cases[i]["logits"].items()) {
        SCOPED_TRACE("prompt " + std::to_string(i) + " row " + position);
        ExpectLogits(logits, row_at(std::stol(position)));
        ++compared;
      }
    } else {
      const auto& best = cases[i].at("top8");
      for (size_t position = 0; position < best.size(); ++position) {
        SCOPED_TRACE("prompt " + std::to_string(i) + " row " + std::to_string(position));
        ExpectBest(best[position], row_at(static_cast<int64_t>(position)));
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 7u);
}

// At this temperature noise alone chooses: logits of tens move the scores by 1e-8.
constexpr float kNoiseOnly = 1e9f;

// A seed whose noise chooses `token` at `position`.
uint64_t SeedFor(int32_t token, int64_t position, size_t vocab_size) {
  const std::vector<float> flat(vocab_size);
  SamplingParams params;
  params.temperature = kNoiseOnly;
  while (SampleToken(flat, params, position) != token) ++params.seed;
  return params.seed;
}

// The module's logits after a prompt's last token: the row of that token and the state before it.
// The engine drafts after sampled tokens only, so noise is made to sample the prompt's last token.
TEST_P(VariantsTest, GoldenMtpLogits) {
  std::ifstream file(Folder() + "/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  LogitRecorder recorder;
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<double>> golden;
  for (const auto& item : cases) {
    if (!item.contains("mtp_logits")) continue;
    std::vector<int32_t> tokens = item.at("tokens");
    const int32_t last = tokens.back();
    tokens.pop_back();
    golden.push_back(item.at("mtp_logits"));
    const int64_t position = static_cast<int64_t>(tokens.size());
    requests.push_back(Greedy(std::move(tokens), 3));
    requests.back().sampling.temperature = kNoiseOnly;
    requests.back().sampling.seed = SeedFor(last, position, golden.back().size());
  }
  ASSERT_EQ(golden.empty(), std::string(GetParam().name) != "v3-odd-mtp");
  if (golden.empty()) return;
  Run(1, requests, recorder);
  for (size_t i = 0; i < golden.size(); ++i) {
    SCOPED_TRACE("prompt " + std::to_string(i));
    const int64_t position = static_cast<int64_t>(requests[i].prompt.size());
    ExpectLogits(golden[i], recorder.draft.at({i, position}));
  }
}

std::vector<Variant> AllVariants() {
  std::vector<Variant> variants;
  for (const char* name : {"v2-greedy", "v2-group-limited", "v3-no-norm-topk", "v3-no-q-lora",
                           "v3-odd-mtp", "tandem-tiny-fp8"}) {
    variants.push_back({name, 1, 1});
    variants.push_back({name, 4, 2});
  }
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Models, VariantsTest, testing::ValuesIn(AllVariants()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_tp" + std::to_string(info.param.tp);
                         });

}  // namespace
}  // namespace tandem
