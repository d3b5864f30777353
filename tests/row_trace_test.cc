// --trace-rows finds the operation, layer and row where two runs part.
#include "engine/row_trace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "driver.h"

namespace tandem {
namespace {

// The tiny model with the first weight of one BF16 tensor changed.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& tensor)
      : folder_(std::filesystem::temp_directory_path() /
                ("tandem_row_trace_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(TinyModel(), folder_);
    std::fstream file(folder_ / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_size = 0;
    file.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
    std::string header(header_size, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header_size));
    const uint64_t offset = nlohmann::json::parse(header)[tensor]["data_offsets"][0];
    const uint16_t one = 0x3f80;
    file.seekp(static_cast<std::streamoff>(8 + header_size + offset));
    file.write(reinterpret_cast<const char*>(&one), sizeof one);
  }
  ~ChangedModel() { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

std::unique_ptr<RowTrace> Trace(const std::string& folder, int tp, int dp, int k) {
  auto trace = std::make_unique<RowTrace>();
  EngineOptions options;
  options.tp_size = tp;
  options.dp_size = dp;
  options.num_draft_tokens = k;
  options.chunked_prefill_size = 7;
  options.hooks.row_tracer = trace.get();
  GenerationRequest request;
  request.prompt = {0, 3059, 334, 284, 262, 399, 280, 2980, 33, 3060};
  request.max_tokens = 6;
  request.sampling.temperature = 0;
  const auto engine = LoadOrDie(folder, options);
  Answers(*engine, {request, request});
  return trace;
}

TEST(RowTrace, LayoutsAgreeOnAllTracedRows) {
  const auto plain = Trace(TinyModel(), 1, 1, 3);
  EXPECT_GT(plain->size(), 2000u);
  for (const auto& [tp, dp] : {std::pair{4, 2}, {2, 2}, {8, 1}}) {
    const auto other = Trace(TinyModel(), tp, dp, 3);
    EXPECT_EQ(RowTrace::FirstDifference(*plain, *other), std::nullopt) << tp << " " << dp;
    EXPECT_EQ(plain->size(), other->size());
  }
}

TEST(RowTrace, NamesTheFirstOperationLayerAndRow) {
  const auto plain = Trace(TinyModel(), 1, 1, 0);
  const struct {
    const char* tensor;
    const char* place;
  } cases[] = {
      {"model.layers.2.self_attn.o_proj.weight", "operation attn_residual of layer 2 (pass 0)"},
      {"model.layers.0.mlp.down_proj.weight", "operation ffn_residual of layer 0 (pass 0)"},
      {"model.layers.0.mlp.up_proj.weight", "operation mlp_up of layer 0 (pass 0)"},
      {"model.layers.3.self_attn.kv_a_proj_with_mqa.weight", "operation kv_a of layer 3 (pass 0)"},
  };
  for (const auto& item : cases) {
    const ChangedModel model(item.tensor);
    const auto changed = Trace(model.folder(), 2, 1, 0);
    const auto difference = RowTrace::FirstDifference(*plain, *changed);
    ASSERT_TRUE(difference.has_value()) << item.tensor;
    EXPECT_EQ(difference->find(item.place), 0u) << *difference;
    EXPECT_NE(difference->find("request 0, position 0"), std::string::npos) << *difference;
  }
}

}  // namespace
}  // namespace tandem
