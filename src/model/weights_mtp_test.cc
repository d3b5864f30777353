// Where MTP modules come from: the checkpoint, one or several, or a separate export; and what
// happens when they are not there.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "model/test_models.h"
#include "model/test_tensors.h"

namespace tandem {
namespace {

constexpr const char* kModel = "v3-odd-mtp";
const std::string kModule = "model.layers.3.";

Result<std::unique_ptr<ModelWeights>> LoadWith(const TestFolder& folder, const ModelConfig& config,
                                               MtpUse use, const std::string& draft = "") {
  LoadOptions options = TestLoadOptions(true);
  options.mtp = use;
  options.draft_folder = draft;
  return ModelWeights::Load(folder.path(), config, *Layout::Make(4, 2), options);
}

bool OfModule(const TestTensors::value_type& entry) {
  return entry.first.starts_with(kModule);
}

TEST(MtpWeights, NoTensorsOfAnAnnouncedModule) {
  TestTensors tensors = ReadModelTensors(kModel);
  std::erase_if(tensors, OfModule);
  const TestFolder folder;
  WriteTensors(folder, tensors);
  const ModelConfig config = TestModelConfig(kModel);
  for (const MtpUse use : {MtpUse::kLeaveOut, MtpUse::kIfPresent}) {
    const auto weights = LoadWith(folder, config, use);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ((*weights)->mtp_state(), MtpState::kAbsent);
    EXPECT_FALSE((*weights)->has_mtp());
    EXPECT_EQ((*weights)->num_layers(), config.num_hidden_layers);
  }
  const Status status = LoadWith(folder, config, MtpUse::kRequire).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status.message(), "the checkpoint has no MTP tensors (model.layers.3.*)"));

  tensors[kModule + "enorm.weight"] = tensors["model.norm.weight"];
  const TestFolder some;
  WriteTensors(some, tensors);
  for (const MtpUse use : {MtpUse::kIfPresent, MtpUse::kRequire, MtpUse::kLeaveOut}) {
    EXPECT_TRUE(Contains(LoadWith(some, config, use).status().message(), "missing: " + kModule));
  }
}

TEST(MtpWeights, AModelWithoutModules) {
  const ModelConfig config = TestModelConfig("v2-greedy");
  const TestFolder folder;
  WriteTensors(folder, ReadModelTensors("v2-greedy"));
  EXPECT_EQ((*LoadWith(folder, config, MtpUse::kIfPresent))->mtp_state(), MtpState::kNone);
  EXPECT_TRUE(Contains(LoadWith(folder, config, MtpUse::kRequire).status().message(),
                       "the model has none"));
}

TEST(MtpWeights, SeveralModules) {
  TestTensors tensors = ReadModelTensors(kModel);
  const TestTensors one = tensors;
  for (const auto& [name, tensor] : one) {
    if (name.starts_with(kModule)) {
      tensors["model.layers.4." + name.substr(kModule.size())] = tensor;
    }
  }
  // The second differs: in its layer, and in a head of its own; it has no embedding.
  tensors["model.layers.4.mlp.experts.2.up_proj.weight"].data[8] ^= 1;
  tensors["model.layers.4.shared_head.head.weight"].data[8] ^= 1;
  tensors.erase("model.layers.4.embed_tokens.weight");
  const TestFolder folder;
  WriteTensors(folder, tensors);
  ModelConfig config = TestModelConfig(kModel);
  EXPECT_TRUE(Contains(LoadWith(folder, config, MtpUse::kRequire).status().message(),
                       "left over: \"model.layers.4."));
  config.num_nextn_predict_layers = 2;
  const auto loaded = LoadWith(folder, config, MtpUse::kRequire);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const ModelWeights& w = **loaded;
  ASSERT_EQ(w.num_mtp_modules(), 2);
  EXPECT_EQ(w.num_layers(), 5);
  ExpectSame(w.mtp(0).eh_proj, w.mtp(1).eh_proj);
  ExpectSame(w.attention(3, 1).query, w.attention(4, 1).query);
  EXPECT_EQ(&w.mtp_embedding(1), &w.embedding());
  EXPECT_EQ(&w.mtp_head(2, 0), &w.head(2));
  EXPECT_NE(&w.mtp_head(2, 1), &w.head(2));
  const PackedMatrix &a = w.ffn(3, 0).experts[2].up, &b = w.ffn(4, 0).experts[2].up;
  EXPECT_NE(std::memcmp(a.Panel<char>(0), b.Panel<char>(0), a.bytes()), 0);
  EXPECT_EQ((*LoadWith(folder, config, MtpUse::kLeaveOut))->num_layers(), 3);
}

// ---- A separate export ----

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `text` with the value of `field` replaced.
std::string WithField(std::string text, const std::string& field, const std::string& value) {
  const size_t at = text.find("\"" + field + "\":");
  EXPECT_NE(at, std::string::npos);
  const size_t begin = text.find(':', at) + 1, end = text.find_first_of(",}\n", begin);
  return text.replace(begin, end - begin, value);
}

// The module of `model` as an export has it: layer 0, no embedding, no head.
TestTensors ExportOf(const TestTensors& model, const std::string& prefix) {
  TestTensors tensors;
  for (const auto& [name, tensor] : model) {
    if (!name.starts_with(prefix)) continue;
    const std::string own = name.substr(prefix.size());
    if (own == "embed_tokens.weight" || own == "shared_head.head.weight") continue;
    tensors["model.layers.0." + own] = tensor;
  }
  return tensors;
}

class Export {
 public:
  explicit Export(const std::string& model)
      : config_(TestModelConfig(model)),
        tensors_(ReadModelTensors(model)),
        prefix_("model.layers." + std::to_string(config_.num_hidden_layers) + "."),
        draft_(ExportOf(tensors_, prefix_)) {
    WriteTensors(target_, tensors_);
    text_ = ReadText(TestModelFolder(model) + "/config.json");
    text_ = WithField(text_, "num_hidden_layers", "1");
    folder_.Write("config.json", text_);
  }

  const ModelConfig& config() const { return config_; }
  const std::string& text() const { return text_; }
  TestTensors& target() { return tensors_; }
  TestTensors& draft() { return draft_; }
  void WriteConfig(const std::string& text) { folder_.Write("config.json", text); }
  void WriteTarget() { WriteTensors(target_, tensors_); }
  Result<std::unique_ptr<ModelWeights>> Load(MtpUse use = MtpUse::kRequire) {
    WriteTensors(folder_, draft_);
    return LoadWith(target_, config_, use, folder_.path());
  }

 private:
  const ModelConfig config_;
  TestTensors tensors_;
  const std::string prefix_;
  TestTensors draft_;
  std::string text_;
  TestFolder target_, folder_;
};

TEST(NextNExport, IsTheModuleOfTheModel) {
  for (const char* model : {"tandem-tiny", "tandem-tiny-fp8", kModel}) {
    SCOPED_TRACE(model);
    Export nextn(model);
    const auto loaded = nextn.Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const ModelWeights& w = **loaded;
    const auto whole = LoadTestModel(model, *Layout::Make(4, 2));
    ASSERT_EQ(w.num_layers(), whole->num_layers());
    for (int64_t layer = 0; layer < w.num_layers(); ++layer) {
      ExpectSameLayer(w, layer, *whole, layer);
    }
    ExpectSame(w.mtp().enorm, whole->mtp().enorm);
    ExpectSame(w.mtp().hnorm, whole->mtp().hnorm);
    ExpectSame(w.mtp().head_norm, whole->mtp().head_norm);
    ExpectSame(w.mtp().eh_proj, whole->mtp().eh_proj);
    EXPECT_EQ(&w.mtp_embedding(), &w.embedding());
    EXPECT_EQ(&w.mtp_head(1), &w.head(1));
    EXPECT_EQ(w.SharedBytes(), whole->SharedBytes());
    EXPECT_FALSE((*nextn.Load(MtpUse::kLeaveOut))->has_mtp());
  }
}

TEST(NextNExport, CopiesOfEmbeddingAndHeadCountOnlyIfTheyDiffer) {
  for (const auto& [embedding, head] : std::vector<std::pair<std::string, std::string>>{
           {"model.layers.0.embed_tokens.weight", "model.layers.0.shared_head.head.weight"},
           {"model.embed_tokens.weight", "lm_head.weight"}}) {
    Export nextn(kModel);
    nextn.draft()[embedding] = nextn.target()["model.embed_tokens.weight"];
    nextn.draft()[head] = nextn.target()["lm_head.weight"];
    const auto same = nextn.Load();
    ASSERT_TRUE(same.ok()) << same.status().message();
    EXPECT_EQ(&(*same)->mtp_embedding(), &(*same)->embedding());
    EXPECT_EQ(&(*same)->mtp_head(0), &(*same)->head(0));
    nextn.draft()[embedding].data[3] ^= 1;
    nextn.draft()[head].data.back() ^= 1;
    const auto differ = nextn.Load();
    EXPECT_NE(&(*differ)->mtp_embedding(), &(*differ)->embedding());
    EXPECT_NE(&(*differ)->mtp_head(0), &(*differ)->head(0));
  }
}

TEST(NextNExport, TheTargetNeedsNoModuleOfItsOwn) {
  Export nextn(kModel);
  std::erase_if(nextn.target(), OfModule);
  nextn.WriteTarget();
  const auto loaded = nextn.Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->num_mtp_modules(), 1);
}

TEST(NextNExport, TensorsAreAccountedFor) {
  Export missing(kModel);
  missing.draft().erase("model.layers.0.hnorm.weight");
  EXPECT_TRUE(
      Contains(missing.Load().status().message(), "1 missing: model.layers.0.hnorm.weight"));
  Export extra(kModel);
  extra.draft()["model.layers.1.hnorm.weight"] = extra.draft()["model.layers.0.hnorm.weight"];
  EXPECT_TRUE(
      Contains(extra.Load().status().message(), "1 left over: \"model.layers.1.hnorm.weight\""));
}

TEST(NextNExport, ItsConfigMustAgree) {
  Export nextn(kModel);
  const struct {
    const char* field;
    const char* value;
    const char* error;
  } kCases[] = {
      {"hidden_size", "80", "hidden_size: 80, but the target model has 72"},
      {"vocab_size", "300", "vocab_size: 300, but the target model has 301"},
      {"num_attention_heads", "5", "num_attention_heads: 5, but the target model has 6"},
      {"n_routed_experts", "24", "n_routed_experts: 24, but the target model has 12"},
      {"routed_scaling_factor", "1.5", "routed_scaling_factor: 1.5, but the target model has 2.5"},
      {"rope_theta", "20000.0", "rope_theta: 20000, but the target model has 10000"},
      {"factor", "5.0", "rope_scaling.factor: 5, but the target model has 4"},
      {"vocab_size", "-1", "vocab_size"},
  };
  for (const auto& test : kCases) {
    nextn.WriteConfig(WithField(nextn.text(), test.field, test.value));
    const Status status = nextn.Load().status();
    EXPECT_TRUE(Contains(status.message(), "config.json: ")) << status.message();
    EXPECT_TRUE(Contains(status.message(), test.error)) << status.message();
  }
  nextn.WriteConfig(nextn.text());
  EXPECT_TRUE(nextn.Load().ok());
}

}  // namespace
}  // namespace tandem
