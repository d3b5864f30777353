// The body of an API request, as each kind.
#include <nlohmann/json.hpp>

#include "server/api_request.h"

namespace {

tandem::ServedModel Model() {
  tandem::ServedModel model;
  model.name = "m";
  model.tokenizer = tandem::Tokenizer::OfBytes();
  model.vocab_size = 256;
  model.context_length = 100;
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::ServedModel model = Model();
  const auto body = tandem::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!body.ok()) return 0;
  for (const auto kind :
       {tandem::ApiKind::kCompletion, tandem::ApiKind::kChat, tandem::ApiKind::kLine}) {
    tandem::ApiRequest request;
    if (tandem::ReadApiRequest(*body, kind, model, &request)) continue;
    const tandem::GenerationRequest& generation = request.generation;
    const int64_t tokens = static_cast<int64_t>(generation.prompt.size()) + generation.max_tokens;
    if (generation.prompt.empty() || generation.max_tokens < 1 || tokens > model.context_length ||
        generation.min_tokens > generation.max_tokens) {
      std::abort();
    }
  }
  return 0;
}
