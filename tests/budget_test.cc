// The memory budget against what the process really holds: five shapes in three layouts, loaded
// with made-up weights, after requests have touched everything; and the peak while loading.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/system_memory.h"
#include "engine/engine_plan.h"
#include "engine_run.h"
#include "model/test_folder.h"

namespace tandem {
namespace {

constexpr int64_t kMiB = 1 << 20;

// The peak of the resident set since the process began.
int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    int64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return 0;
}
struct Shape {
  const char* name;
  nlohmann::json changes;  // of the base below
};

// Small enough for CI, large enough that 3 % are megabytes: 150 to 400 MiB each.
nlohmann::json Config(const Shape& shape) {
  nlohmann::json config = nlohmann::json::parse(R"({
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
    "torch_dtype": "bfloat16", "vocab_size": 16000, "hidden_size": 768, "intermediate_size": 2048,
    "moe_intermediate_size": 384, "num_hidden_layers": 5, "num_nextn_predict_layers": 1,
    "num_attention_heads": 16, "q_lora_rank": 384, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 32, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
    "norm_topk_prob": true, "routed_scaling_factor": 1.0, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096, "rope_theta": 10000.0, "rope_scaling": null})");
  config.update(shape.changes);
  return config;
}

const Shape kShapes[] = {
    {"bf16", nlohmann::json::object()},
    {"fp8",
     {{"n_routed_experts", 64},
      {"quantization_config",
       {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}}}}},
    {"wide vocabulary", {{"vocab_size", 100000}, {"n_routed_experts", 8}}},
    {"dense and many heads",
     {{"first_k_dense_replace", 4},
      {"intermediate_size", 8192},
      {"num_attention_heads", 64},
      {"q_lora_rank", nullptr}}},
    {"no MTP, no shared experts", {{"num_nextn_predict_layers", 0}, {"n_shared_experts", 0}}},
};

struct Measured {
  int64_t predicted = 0, held = 0, peak = 0;
  char budget[2000] = {};
};

// Loads, answers some requests, and looks at the process.
Measured Measure(const Shape& shape, int tp, int dp) {
  const TestFolder folder;
  const nlohmann::json config = Config(shape);
  folder.Write("config.json", config.dump());
  EngineOptions options = TestOptions(tp, dp, config["num_nextn_predict_layers"] != 0 ? 2 : 0);
  options.kv_format = LatentFormat::kBf16;
  options.dummy_weights = true;
  options.max_total_tokens = 8192;
  options.max_num_seqs = 8;
  Measured measured;
  {
    const auto plan = PlanEngine(folder.path(), options);
    CHECK(plan.ok());
    measured.predicted = plan->budget.total_bytes();
    plan->budget.Text(plan->layout).copy(measured.budget, sizeof measured.budget - 1);
  }
  const auto engine = LoadOrDie(folder.path(), options);
  measured.peak = PeakMemory();
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 3 * dp; ++i) {
    requests.push_back(GreedyRequest(RandomPrompt(40, 16000, i), 4));
    requests.back().logprobs = 2;
  }
  Answers(*engine, requests);
  measured.held = ResidentMemory();
  return measured;
}

// In a process of its own: what others have given back, this one would use again.
Measured MeasureInChild(const Shape& shape, int tp, int dp) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const Measured measured = Measure(shape, tp, dp);
    _exit(write(ends[1], &measured, sizeof measured) == sizeof measured ? 0 : 1);
  }
  close(ends[1]);
  Measured measured;
  const bool read_all = read(ends[0], &measured, sizeof measured) == sizeof measured;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(read_all && status == 0);
  return measured;
}

class BudgetTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(BudgetTest, IsWithinThreePercentOfWhatIsHeld) {
  const Shape& shape = kShapes[std::get<0>(GetParam())];
  constexpr std::pair<int, int> kLayouts[] = {{1, 1}, {4, 2}, {2, 2}};
  const auto [tp, dp] = kLayouts[std::get<1>(GetParam())];
  const Measured m = MeasureInChild(shape, tp, dp);
  const double error = static_cast<double>(m.predicted - m.held) / static_cast<double>(m.held);
  EXPECT_LT(std::abs(error), 0.03)
      << shape.name << " tp" << tp << " dp" << dp << ": predicted " << m.predicted / kMiB
      << " MiB, held " << m.held / kMiB << " MiB\n"
      << m.budget;
  EXPECT_LT(m.peak, m.predicted + 200 * kMiB);
  EXPECT_GT(m.peak, m.predicted / 2);  // it is measured
}

INSTANTIATE_TEST_SUITE_P(ShapesAndLayouts, BudgetTest,
                         testing::Combine(testing::Range(0, 5), testing::Range(0, 3)));

}  // namespace
}  // namespace tandem
