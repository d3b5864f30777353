// The engine against the reference's golden files: tokens, log-probabilities, drafts and acceptance
// (README of golden/).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "driver.h"

namespace tandem {
namespace {

// Beyond this two best logits are told apart by any FP32 order of sums; nearer ones may swap
// (issue's own bound).
constexpr double kLead = 1e-3;
constexpr double kLogprobTolerance = 2e-3;

struct GoldenLayout {
  const char* name;
  int tp, dp;
};

class GoldenTest : public testing::TestWithParam<GoldenLayout> {
 protected:
  static nlohmann::json Read(const std::string& name) {
    std::ifstream file(GoldenFile(name));
    return nlohmann::json::parse(file);
  }

  static EngineOptions Options(int k) {
    EngineOptions options;
    options.tp_size = GetParam().tp;
    options.dp_size = GetParam().dp;
    options.num_draft_tokens = k;
    options.kv_format = LatentFormat::kFp32;
    return options;
  }

  static std::vector<GenerationRequest> Requests(const nlohmann::json& cases) {
    std::vector<GenerationRequest> requests;
    for (const auto& item : cases) {
      GenerationRequest request;
      request.prompt = item.at("prompt").get<std::vector<int32_t>>();
      request.max_tokens = item.at("max_tokens");
      request.sampling.temperature = 0;
      request.stop_token_ids = {1};
      request.logprobs = 8;
      requests.push_back(request);
    }
    return requests;
  }

  // Tokens up to the first place where the reference itself was undecided.
  static size_t Decided(const nlohmann::json& item) {
    const auto& top = item.at("top8");
    for (size_t i = 0; i < top.size(); ++i) {
      if (top[i][0][1].get<double>() - top[i][1][1].get<double>() < kLead) return i;
    }
    return top.size();
  }

  static void CheckTokens(const nlohmann::json& item, const Answer& answer) {
    const auto tokens = item.at("tokens").get<std::vector<int32_t>>();
    const size_t decided = Decided(item);
    if (decided == tokens.size()) {
      ASSERT_EQ(answer.tokens.size(), tokens.size());
    }
    for (size_t i = 0; i < decided; ++i) {
      ASSERT_EQ(answer.tokens.at(i), tokens[i]) << "token " << i;
      const TokenLogprob& logprob = answer.logprobs.at(i);
      ASSERT_EQ(logprob.token, tokens[i]);
      ASSERT_EQ(logprob.top.size(), 8u);
      for (size_t j = 0; j < 8; ++j) {
        ASSERT_NEAR(logprob.top[j].second, item["top8"][i][j][1].get<double>(), kLogprobTolerance)
            << "token " << i << " best " << j;
      }
    }
  }

  // Every window that held drafts, in order, by request: what the leaders of all replicas saw.
  using Windows = std::map<uint64_t, std::vector<std::vector<int32_t>>>;

  static void Collect(const StepObservation& step, Windows& windows) {
    if (step.rank % (GetParam().tp / GetParam().dp) != 0) return;
    for (const PlanSequence& sequence : step.plan.sequences) {
      if (sequence.is_chunk() || sequence.num_rows < 2) continue;
      const int32_t* tokens = step.plan.tokens.data() + sequence.token_begin;
      windows[sequence.request_id].emplace_back(tokens + 1, tokens + sequence.num_rows);
    }
  }

  // Drafts and accepted counts step by step, while neither target nor drafts were undecided.
  static size_t CheckAcceptance(const nlohmann::json& item, int k, const Answer& answer,
                                const std::vector<std::vector<int32_t>>& windows) {
    const auto& steps = item.at("speculation").at(std::to_string(k));
    size_t position = 1, checked = 0;  // tokens known before the step
    const size_t decided = Decided(item);
    for (const auto& step : steps) {
      for (const auto& lead : step["leads"]) {
        if (lead.get<double>() < kLead) return checked;
      }
      EXPECT_EQ(windows.at(checked), step["drafts"].get<std::vector<int32_t>>())
          << "step " << checked;
      const int accepted = step["accepted"];
      if (position + accepted + 1 > decided && decided < item["tokens"].size()) return checked;
      EXPECT_EQ(answer.statistics.accepted_per_step.at(checked), accepted) << "step " << checked;
      position += accepted + 1;
      ++checked;
    }
    EXPECT_EQ(answer.statistics.verify_steps, static_cast<int64_t>(steps.size()));
    return checked;
  }
};

TEST_P(GoldenTest, GenerationAndAcceptance) {
  nlohmann::json all = Read("generation.json"), cases;
  for (const auto& item : all) {
    if (item.contains("tokens")) cases.push_back(item);
  }
  ASSERT_GE(cases.size(), 20u);
  for (int k = 0; k <= 3; ++k) {
    std::mutex mutex;
    Windows windows;
    EngineOptions options = Options(k);
    options.hooks.on_step = [&](const StepObservation& step) {
      const std::lock_guard lock(mutex);
      Collect(step, windows);
    };
    auto engine = LoadOrDie(TinyModel(), options);
    const std::vector<Answer> answers = Answers(*engine, Requests(cases));
    engine.reset();  // the last answers come before the last step's hook
    size_t checked = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(cases[i]["name"].get<std::string>() + " k=" + std::to_string(k));
      CheckTokens(cases[i], answers[i]);
      if (k > 0 && cases[i].contains("speculation")) {
        checked += CheckAcceptance(cases[i], k, answers[i], windows[i]);
      }
    }
    if (k > 0) {
      EXPECT_GT(checked, 200u);
    }
  }
}

TEST_P(GoldenTest, PromptLogprobs) {
  const nlohmann::json golden = Read("prompt_logprobs.json");
  GenerationRequest request;
  request.prompt = golden.at("tokens").get<std::vector<int32_t>>();
  request.max_tokens = 1;
  request.sampling.temperature = 0;
  request.prompt_logprobs = 0;
  const auto engine = LoadOrDie(TinyModel(), Options(3));
  const Answer answer = Answers(*engine, {request})[0];
  ASSERT_EQ(answer.prompt_logprobs.size(), request.prompt.size() - 1);
  for (size_t i = 1; i < request.prompt.size(); ++i) {
    EXPECT_EQ(answer.prompt_logprobs[i - 1].token, request.prompt[i]);
    EXPECT_NEAR(answer.prompt_logprobs[i - 1].logprob, golden["logprobs"][i].get<double>(),
                kLogprobTolerance)
        << i;
  }
}

// Random weights of odd sizes: FP32 logits of each prompt's last row, compared as log-probabilities
// of the best 20.
TEST_P(GoldenTest, OddSizes) {
  std::ifstream file(OddModel() + "/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  std::vector<GenerationRequest> requests;
  for (const auto& item : cases) {
    GenerationRequest request;
    request.prompt = item.at("tokens").get<std::vector<int32_t>>();
    request.max_tokens = 1;
    request.sampling.temperature = 0;
    request.logprobs = kMaxTopLogprobs;
    requests.push_back(request);
  }
  const auto engine = LoadOrDie(OddModel(), Options(2));
  const std::vector<Answer> answers = Answers(*engine, requests);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string row = std::to_string(requests[i].prompt.size() - 1);
    const auto logits = cases[i].at("logits").at(row).get<std::vector<double>>();
    double sum = 0, largest = 0;
    for (const double logit : logits) {
      sum += std::exp(logit);
      largest = std::max(largest, std::abs(logit));
    }
    for (const auto& [token, logprob] : answers[i].logprobs.at(0).top) {
      EXPECT_NEAR(logprob, logits.at(token) - std::log(sum), kLogprobTolerance * largest)
          << "prompt " << i << " token " << token;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GoldenTest,
                         testing::Values(GoldenLayout{"tp1", 1, 1}, GoldenLayout{"tp4dp2", 4, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem
