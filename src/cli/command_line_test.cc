#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/generate_input.h"
#include "cli/progress_bar.h"

namespace tandem {
namespace {

Result<CommandLine> Parse(const std::string& words) {
  std::istringstream stream("tandem " + words);
  std::vector<std::string> arguments;
  for (std::string word; stream >> word;) arguments.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

CommandLine Good(const std::string& words) {
  auto line = Parse(words);
  EXPECT_TRUE(line.ok()) << words << ": " << line.status().message();
  return line.ok() ? std::move(line).value() : CommandLine();
}

std::string Error(const std::string& words) {
  const auto line = Parse(words);
  EXPECT_FALSE(line.ok()) << "accepted: " << words;
  const std::string message = line.status().message();
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(CommandLineTest, TakesTheIssuesCommand) {
  const CommandLine line = Good(
      "serve models/tandem-tiny -tp 2 --enable-dp-attention --enable-expert-parallel --method mtp "
      "--num-speculative-tokens 3");
  EXPECT_EQ(line.command, Command::kServe);
  EXPECT_EQ(line.engine.model_folder, "models/tandem-tiny");
  EXPECT_EQ(line.engine.options.tp_size, 2);
  EXPECT_EQ(line.engine.options.dp_size, 2);
  EXPECT_EQ(line.engine.options.num_draft_tokens, 3);
  EXPECT_EQ(line.serve.host, "127.0.0.1");
}

TEST(CommandLineTest, KnowsEverySpelling) {
  for (const char* tp : {"-tp 4", "-tp=4", "--tp 4", "--tp-size 4", "--tensor-parallel-size 4",
                         "--tensor_parallel_size=4"}) {
    for (const char* dp : {"--dp-size 2", "--dp 2", "--dp_size=2"}) {
      const CommandLine line = Good(std::string("serve M --enable_dp_attention ") + tp + " " + dp);
      EXPECT_EQ(line.engine.options.tp_size, 4);
      EXPECT_EQ(line.engine.options.dp_size, 2);
    }
  }
  const CommandLine line = Good(
      "serve --model M_x --kv_cache_dtype fp32 --block-size 10000 --max-num-seqs 5 --max-model-len "
      "300 --chunked-prefill-size 64 --max-step-rows 70 --max-total-tokens 9000000000 --threads 3 "
      "--communicator copying --served-model-name tiny --chat-template file --host 0.0.0.0 --port "
      "0");
  EXPECT_EQ(line.engine.model_folder, "M_x");
  const EngineOptions& options = line.engine.options;
  EXPECT_EQ(options.kv_format, LatentFormat::kFp32);
  EXPECT_EQ(options.block_size, 10000);
  EXPECT_EQ(options.max_num_seqs, 5);
  EXPECT_EQ(options.context_length, 300);
  EXPECT_EQ(options.chunked_prefill_size, 64);
  EXPECT_EQ(options.max_step_rows, 70);
  EXPECT_EQ(options.max_total_tokens, 9000000000);
  EXPECT_EQ(options.num_threads, 3);
  EXPECT_TRUE(options.copying_communicator);
  EXPECT_EQ(line.engine_flags.served_model_name, "tiny");
  EXPECT_EQ(line.engine_flags.chat_template, "file");
  EXPECT_EQ(line.serve.host, "0.0.0.0");
  EXPECT_EQ(line.serve.port, 0);
}

TEST(CommandLineTest, LoadingAndMemory) {
  const EngineOptions options = Good(
                                    "serve M --load-format dummy --dummy-seed 7 --dummy-acceptance "
                                    "0.75 --gpu-memory-utilization 0.41 --request-timeout 2.5 "
                                    "--kv-cache-dtype fp8")
                                    .engine.options;
  EXPECT_TRUE(options.dummy_weights);
  EXPECT_EQ(options.dummy_seed, 7u);
  EXPECT_EQ(options.dummy_acceptance, 0.75);
  EXPECT_EQ(options.memory_fraction, 0.41);
  EXPECT_EQ(options.request_timeout_seconds, 2.5);
  EXPECT_EQ(options.kv_format, LatentFormat::kFp8);
  EXPECT_FALSE(options.isa);
  EXPECT_EQ(Good("serve M --isa avx2").engine.options.isa, Isa::kAvx2);
  EXPECT_EQ(Good("serve M --speculative-draft-model-path D --num-speculative-tokens 1")
                .engine.options.draft_model_folder,
            "D");
}

TEST(CommandLineTest, KeepsTheEnginesDefaults) {
  const EngineOptions defaults, options = Good("serve M").engine.options;
  EXPECT_EQ(options.tp_size, 1);
  EXPECT_EQ(options.dp_size, 1);
  EXPECT_EQ(options.num_draft_tokens, 0);
  EXPECT_EQ(options.kv_format, LatentFormat::kBf16);
  EXPECT_EQ(options.block_size, defaults.block_size);
  EXPECT_EQ(options.max_num_seqs, defaults.max_num_seqs);
  EXPECT_EQ(options.chunked_prefill_size, defaults.chunked_prefill_size);
}

TEST(CommandLineTest, ResolvesSpeculation) {
  EXPECT_EQ(Good("serve M --num-speculative-tokens 5").engine.options.num_draft_tokens, 5);
  EXPECT_EQ(Good("serve M --method mtp --num-speculative-tokens 0").engine.options.num_draft_tokens,
            0);
  const CommandLine one = Good("serve M --method mtp");
  EXPECT_EQ(one.engine.options.num_draft_tokens, 1);
  ASSERT_EQ(one.engine.notes.size(), 1u);
  EXPECT_NE(one.engine.notes[0].find("1 draft"), std::string::npos);
}

TEST(CommandLineTest, RefusesInOneLine) {
  const struct {
    const char* words;
    const char* part;  // of the message
  } kCases[] = {
      {"", "serve, generate or inspect"},
      {"fly M", "fly"},
      {"serve", "MODEL"},
      {"serve M --model N", "two models"},
      {"serve M --no-such-flag", "--no-such-flag"},
      {"serve M -tp", "--tensor-parallel-size"},
      {"serve M -tp two", "two"},
      {"serve M -tp 3", "3"},
      {"serve M -tp 0", "0"},
      {"serve M -tp 32", "32"},
      {"serve M -tp 4 --enable-dp-attention --dp-size 3", "3"},
      {"serve M -tp 4 --dp-size 2", "--enable-dp-attention --dp-size 2"},
      {"serve M --method ngram", "mtp"},
      {"serve M --num-speculative-tokens 9", "from 0 to 8"},
      {"serve M --num-speculative-tokens -1", "from 0 to 8"},
      {"serve M --kv-cache-dtype int4", "int4"},
      {"serve M --communicator pigeon", "pigeon"},
      {"serve M --load-format gguf", "gguf"},
      {"serve M --isa sse2", "avx2 or avx512"},
      {"serve M --dummy-acceptance 0.5", "--load-format dummy"},
      {"serve M --dummy-seed 1", "--load-format dummy"},
      {"serve M --load-format dummy --dummy-acceptance 1.5", "from 0 to 1"},
      {"serve M --load-format dummy --dummy-acceptance nan", "from 0 to 1"},
      {"serve M --load-format dummy --speculative-draft D", "exclude"},
      {"serve M --mem-fraction-static 0", "above 0"},
      {"serve M --gpu-memory-utilization 1.1", "at most 1"},
      {"serve M --request-timeout -1", "--request-timeout"},
      {"serve M --block-size 0", "--block-size"},
      {"serve M --max-num-seqs 0", "--max-num-seqs"},
      {"serve M --chunked-prefill-size 0", "--chunked-prefill-size"},
      {"serve M --max-step-rows 0", "--max-step-rows"},
      {"serve M --max-total-tokens 0", "--max-total-tokens"},
      {"serve M --context-length 1", "--context-length"},
      {"serve M --threads 0", "--threads"},
      {"serve M --port 65536", "--port"},
      {"serve M --prompt x", "--prompt"},
      {"generate M", "--prompt"},
      {"generate M --prompt a --chat b", "exactly one"},
      {"generate M --prompt a --port 80", "--port"},
      {"generate M --prompt a --temperature warm", "warm"},
  };
  for (const auto& c : kCases) {
    const std::string message = Error(c.words);
    EXPECT_NE(message.find(c.part), std::string::npos) << c.words << ": " << message;
  }
}

TEST(CommandLineTest, PrintsHelpAndVersion) {
  EXPECT_EQ(Good("--version").text.substr(0, 7), "tandem ");
  EXPECT_NE(Good("--help").text.find("generate"), std::string::npos);
  const std::string help = Good("serve --help").text;
  for (const char* group : {"Layout", "Speculation", "Capacity", "HTTP"}) {
    EXPECT_NE(help.find(std::string(group) + ":"), std::string::npos) << group;
  }
  EXPECT_EQ(Good("serve --help").command, Command::kPrint);
}

TEST(CommandLineTest, SamplingFlagsBecomeFields) {
  const CommandLine line = Good(
      "generate M --prompt hi --temperature 0.5 --top-p 0.9 --top-k 3 --min-p 0.1 --seed 7 "
      "--max-tokens 9 --ignore-eos --stop-token-ids 4,5 --logprobs 2 --json");
  EXPECT_TRUE(line.generate.json);
  EXPECT_EQ(nlohmann::json::parse(line.generate.sampling),
            nlohmann::json::parse(R"({"temperature":0.5,"top_p":0.9,"top_k":3,"min_p":0.1,"seed":7,
                "max_tokens":9,"ignore_eos":true,"stop_token_ids":[4,5],"logprobs":2})"));
  EXPECT_EQ(Good("generate --prompt hi --stop-token-ids 4,5 M").engine.model_folder, "M");
}

TEST(ProgressLineTest, IsAsWideAtEveryFraction) {
  EXPECT_EQ(ProgressLine(0, 0), "loading [" + std::string(40, '.') + "]   0 %");
  EXPECT_EQ(ProgressLine(0.5, 3.0),
            "loading [" + std::string(20, '#') + std::string(20, '.') + "]  50 %, 3 s left");
  EXPECT_EQ(ProgressLine(0.999, 99.9).substr(0, 58),
            "loading [" + std::string(39, '#') + ".]  99 %, ");
  EXPECT_EQ(ProgressLine(1.7, 9), "loading [" + std::string(40, '#') + "] 100 %");
}

class GenerateInputTest : public testing::Test {
 protected:
  Result<std::vector<InputLine>> Read(const std::string& text) {
    flags_.input = testing::TempDir() + "/tandem_input.jsonl";
    std::ofstream(flags_.input) << text;
    return ReadInput(flags_);
  }

  GenerateFlags flags_;
};

TEST_F(GenerateInputTest, LinesWinOverFlags) {
  flags_.sampling = R"({"temperature":0.5,"seed":1})";
  const auto lines = Read("{\"prompt\":\"a\",\"seed\":9}\n\n  \n{\"prompt\":\"b\"}\n");
  ASSERT_TRUE(lines.ok());
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ(nlohmann::json::parse((*lines)[0].json),
            nlohmann::json::parse(R"({"prompt":"a","temperature":0.5,"seed":9})"));
  EXPECT_EQ((*lines)[1].where, "input line 4");
}

TEST_F(GenerateInputTest, NamesBadLines) {
  for (const char* bad : {"{\"prompt\":", "7", "\"\xff\""}) {
    const auto lines = Read(std::string("{\"prompt\":\"a\"}\n") + bad + "\n");
    ASSERT_FALSE(lines.ok());
    EXPECT_EQ(lines.status().message().substr(0, 13), "input line 2:");
  }
  EXPECT_FALSE(Read("").ok());
  flags_.input = testing::TempDir() + "/no such file";
  EXPECT_FALSE(ReadInput(flags_).ok());
}

TEST_F(GenerateInputTest, TextsBecomeLines) {
  flags_.chat = "hello";
  EXPECT_EQ((*ReadInput(flags_))[0].json, R"({"messages":[{"role":"user","content":"hello"}]})");
  flags_.chat.reset();
  flags_.prompt = "\xff";
  EXPECT_FALSE(ReadInput(flags_).ok());
}

}  // namespace
}  // namespace tandem
