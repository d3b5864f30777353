// The accuracy experiment in small: every question of golden/questions.jsonl, asked in the chat
// form, gets the reference's reply without speculation on one rank and with three drafts on tp4
// dp2.
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>

#include "driver.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

struct Question {
  nlohmann::json json;
  GenerationRequest request;
};

// "Zinc" is answered by "... is zinc.": the reference's count ignores case.
std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

class AccuracyTest : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = Tokenizer::Load(TinyModel()).value();
    const auto chat = ChatTemplate::Load(TinyModel()).value();
    std::ifstream file(GoldenFile("questions.jsonl"));
    for (std::string line; std::getline(file, line);) {
      Question question{nlohmann::json::parse(line), {}};
      const nlohmann::json messages = {
          {{"role", "user"}, {"content", question.json.at("question")}}};
      const std::string prompt = chat->Render(messages.dump(), "", "", true).value();
      question.request.prompt = tokenizer_->Encode(prompt, false).value();
      question.request.max_tokens = 32;
      question.request.sampling.temperature = 0;
      question.request.stop_token_ids = {1};
      questions_.push_back(std::move(question));
    }
    ASSERT_EQ(questions_.size(), 240u);
  }

  // Replies equal to the reference's, EOS cut; returns how many hold the answer.
  int Ask(const EngineOptions& options) {
    std::vector<GenerationRequest> requests;
    for (const Question& question : questions_) requests.push_back(question.request);
    const auto engine = LoadOrDie(TinyModel(), options);
    const std::vector<Answer> answers = Answers(*engine, requests);
    int right = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      std::vector<int32_t> tokens = answers[i].tokens;
      if (answers[i].finish_reason == FinishReason::kStop) tokens.pop_back();
      const std::string reply = tokenizer_->Decode(tokens, true);
      const nlohmann::json& json = questions_[i].json;
      // A lead below 1e-3 may turn either way under another order of FP32 sums.
      if (json.at("lead").get<double>() >= 1e-3) {
        EXPECT_EQ(reply, json.at("reply").get<std::string>()) << i;
      }
      right += Lower(reply).find(Lower(json.at("answer"))) != std::string::npos ? 1 : 0;
    }
    return right;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Question> questions_;
};

TEST_F(AccuracyTest, PlainPath) {
  EngineOptions options;
  options.kv_format = LatentFormat::kFp32;
  EXPECT_EQ(Ask(options), 209);
}

TEST_F(AccuracyTest, SpeculationOnTp4Dp2) {
  EngineOptions options;
  options.kv_format = LatentFormat::kFp32;
  options.tp_size = 4;
  options.dp_size = 2;
  options.num_draft_tokens = 3;
  EXPECT_EQ(Ask(options), 209);
}

}  // namespace
}  // namespace tandem
