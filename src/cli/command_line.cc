#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/version.h"

namespace tandem {
namespace {

// As given; what is absent is left to the input line, the model and the API.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k, seed, max_tokens, min_tokens, logprobs;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;

  std::string ToJson() const;
};

std::string SamplingFlags::ToJson() const {
  nlohmann::json fields = nlohmann::json::object();
  const auto add = [&fields](const char* name, const auto& value) {
    if (value) fields[name] = *value;
  };
  add("temperature", temperature);
  add("top_p", top_p);
  add("min_p", min_p);
  add("top_k", top_k);
  add("seed", seed);
  add("max_tokens", max_tokens);
  add("min_tokens", min_tokens);
  add("logprobs", logprobs);
  if (!stop_token_ids.empty()) fields["stop_token_ids"] = stop_token_ids;
  if (ignore_eos) fields["ignore_eos"] = true;
  return fields.dump();
}

void AddServeFlags(CLI::App& app, ServeFlags* flags) {
  app.add_option("--host", flags->host, "the address to listen on")
      ->capture_default_str()
      ->group("HTTP");
  app.add_option("--port", flags->port, "the port to listen on; 0 takes a free one")
      ->capture_default_str()
      ->group("HTTP");
}

void AddGenerateFlags(CLI::App& app, GenerateFlags* flags) {
  const char* group = "Input, one of these";
  app.add_option("--prompt", flags->prompt, "a text to continue")->group(group);
  app.add_option("--chat", flags->chat, "a user's message to answer")->group(group);
  app.add_option("--input", flags->input,
                 "a file of JSON lines with prompt, prompt_token_ids or messages")
      ->group(group);
  app.add_flag("--json", flags->json, "print one JSON line per request")->group("Output");
  app.add_option("--trace-rows", flags->trace_rows,
                 "a file for a hash of every operation's output rows, to compare two runs")
      ->group("Output");
}

void AddSamplingFlags(CLI::App& app, SamplingFlags* flags) {
  const char* group = "Sampling (a line of --input may say otherwise)";
  app.add_option("--temperature", flags->temperature, "0 takes the best token")->group(group);
  app.add_option("--top-p", flags->top_p, "share of probability to keep; 1 is off")->group(group);
  app.add_option("--top-k", flags->top_k, "best tokens to keep; 0 is off")->group(group);
  app.add_option("--min-p", flags->min_p, "least probability relative to the best; 0 is off")
      ->group(group);
  app.add_option("--seed", flags->seed, "drawn and shown if not given")->group(group);
  app.add_option("--max-tokens", flags->max_tokens, "most tokens to generate")->group(group);
  app.add_option("--min-tokens", flags->min_tokens, "tokens before an end is possible")
      ->group(group);
  app.add_flag("--ignore-eos", flags->ignore_eos, "go on after the end-of-text token")
      ->group(group);
  app.add_option("--stop-token-ids", flags->stop_token_ids, "ids to stop at, divided by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--logprobs", flags->logprobs,
                 "give log-probabilities, with those of so many best tokens")
      ->group(group);
}

// The parser's own words for these don't name what was given.
Status CheckCommand(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    return InvalidArgument("a command is missing: serve, generate or inspect (see tandem --help)");
  }
  const std::string& first = arguments[0];
  if (first.rfind('-', 0) == 0 || first == "serve" || first == "generate" || first == "inspect") {
    return Status();
  }
  return InvalidArgument(
      fmt::format("there is no command '{}': say serve, generate or inspect", first));
}

Status CheckServe(const ServeFlags& flags) {
  if (flags.port >= 0 && flags.port <= 65535) return Status();
  return InvalidArgument(fmt::format("--port must be from 0 to 65535, not {}", flags.port));
}

Status CheckGenerate(const GenerateFlags& flags) {
  const int inputs = flags.prompt.has_value() + flags.chat.has_value() + !flags.input.empty();
  if (inputs == 1) return Status();
  return InvalidArgument("give exactly one of --prompt TEXT, --chat TEXT and --input FILE");
}

}  // namespace

Result<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  SamplingFlags sampling;
  CLI::App app("Inference server for mixture-of-experts models with multi-token prediction.",
               "tandem");
  app.set_version_flag("--version", fmt::format("tandem {}", kVersion));
  app.require_subcommand(1);
  CLI::App* serve = app.add_subcommand("serve", "serve a model over HTTP");
  AddEngineFlags(*serve, &line.engine_flags);
  AddServeFlags(*serve, &line.serve);
  CLI::App* generate = app.add_subcommand("generate", "generate text and print it");
  AddEngineFlags(*generate, &line.engine_flags);
  AddGenerateFlags(*generate, &line.generate);
  AddSamplingFlags(*generate, &sampling);

  CLI::App* inspect =
      app.add_subcommand("inspect", "say what a model is and what serving it takes");
  AddEngineFlags(*inspect, &line.engine_flags);
  inspect->add_flag("--json", line.inspect.json, "print one JSON object")->group("Output");

  std::vector<std::string> arguments = NormalizeArguments(argc, argv);
  RETURN_IF_ERROR(CheckCommand(arguments));
  std::reverse(arguments.begin(), arguments.end());  // the parser takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.text = fmt::format("tandem {}\n", kVersion);
    return line;
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(error.what());
  }
  ASSIGN_OR_RETURN(line.engine, ResolveEngineFlags(line.engine_flags));
  if (serve->parsed()) {
    line.command = Command::kServe;
    RETURN_IF_ERROR(CheckServe(line.serve));
  } else if (inspect->parsed()) {
    line.command = Command::kInspect;
  } else {
    line.command = Command::kGenerate;
    line.generate.sampling = sampling.ToJson();
    RETURN_IF_ERROR(CheckGenerate(line.generate));
  }
  return line;
}

}  // namespace tandem
