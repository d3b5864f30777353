#include "text/tokenizer.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/text_file.h"
#include "text/ffi/tandem_text.h"
#include "text/ffi_sink.h"
#include "text/tokenizer_config.h"

namespace tandem {

void Tokenizer::Free::operator()(TandemTokenizer* tokenizer) const {
  tandem_tokenizer_free(tokenizer);
}

Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_folder) {
  const std::string path = model_folder + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(model_folder));
  std::unique_ptr<Tokenizer> result(new Tokenizer);
  std::string error;
  result->tokenizer_.reset(tandem_tokenizer_load(json.data(), json.size(), AppendText, &error));
  if (result->tokenizer_ == nullptr) return InvalidArgument(path + ": " + error);

  result->bos_token_ = config.bos_token;
  result->bos_id_ = result->IdOf(config.bos_token);
  result->eos_id_ = result->IdOf(config.eos_token);
  result->post_process_ = !config.add_bos_token && !config.add_eos_token;
  if (result->post_process_) return result;

  // A key that is absent beside the other one keeps what the post-processor does.
  ASSIGN_OR_RETURN(const std::vector<int32_t> frame, result->EncodeRaw("", true));
  const bool frame_bos = result->bos_id_ && !frame.empty() && frame.front() == *result->bos_id_;
  const bool frame_eos = result->eos_id_ && !frame.empty() && frame.back() == *result->eos_id_;
  result->add_bos_ = config.add_bos_token.value_or(frame_bos);
  result->add_eos_ = config.add_eos_token.value_or(frame_eos);
  if (result->add_bos_ && !result->bos_id_) {
    return InvalidArgument(config.path + ": field \"add_bos_token\" is true but \"bos_token\" (\"" +
                           config.bos_token + "\") is no token of " + path);
  }
  if (result->add_eos_ && !result->eos_id_) {
    return InvalidArgument(config.path + ": field \"add_eos_token\" is true but \"eos_token\" (\"" +
                           config.eos_token + "\") is no token of " + path);
  }
  return result;
}

namespace {

// A byte-level BPE without merges. Its vocabulary spells byte b as Unicode character b where that
// is printable, and as 256, 257, ... in order where it is not (GPT-2's alphabet).
std::string ByteLevelJson() {
  std::string vocabulary;
  for (int byte = 0, other = 256; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    vocabulary +=
        fmt::format("{}\"\\u{:04x}\":{}", byte == 0 ? "" : ",", printable ? byte : other++, byte);
  }
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
         R"("use_regex":false},"post_processor":null,"decoder":{"type":"ByteLevel",)"
         R"("add_prefix_space":false,"trim_offsets":true,"use_regex":false},)"
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,)"
         R"("byte_fallback":false,"merges":[],"vocab":{)" +
         vocabulary + "}}}";
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::OfBytes() {
  const std::string json = ByteLevelJson();
  std::unique_ptr<Tokenizer> result(new Tokenizer);
  std::string error;
  result->tokenizer_.reset(tandem_tokenizer_load(json.data(), json.size(), AppendText, &error));
  CHECK(result->tokenizer_ != nullptr);
  result->post_process_ = true;
  return result;
}

Result<std::vector<int32_t>> Tokenizer::EncodeRaw(std::string_view text, bool post_process) const {
  std::vector<int32_t> ids;
  std::string error;
  if (tandem_tokenizer_encode(tokenizer_.get(), text.data(), text.size(), post_process, AppendIds,
                              &ids, AppendText, &error) != 0) {
    return InvalidArgument(error);
  }
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               bool add_special_tokens) const {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeRaw(text, add_special_tokens && post_process_));
  if (!add_special_tokens) return ids;
  const auto begins_with_bos = [&](size_t at) {
    return bos_id_ && ids.size() > at && ids[at] == *bos_id_;
  };
  if (post_process_) {
    const bool twice = begins_with_bos(0) && begins_with_bos(1) && text.starts_with(bos_token_);
    if (twice) ids.erase(ids.begin());
    return ids;
  }
  if (add_bos_ && !begins_with_bos(0)) ids.insert(ids.begin(), *bos_id_);
  if (add_eos_) ids.push_back(*eos_id_);
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  std::string error;
  if (tandem_tokenizer_decode(tokenizer_.get(), ids.data(), ids.size(), skip_special_tokens,
                              AppendText, &text, AppendText, &error) != 0) {
    // No list of ids can cause this; the text is lost, the server need not be.
    LogError("decoding {} tokens: {}", ids.size(), error);
  }
  return text;
}

Tokenizer::Piece Tokenizer::PieceOf(int32_t id, bool skip_special_tokens,
                                    std::string* bytes) const {
  bytes->clear();
  switch (tandem_tokenizer_piece(tokenizer_.get(), id, skip_special_tokens, AppendText, bytes)) {
    case kTandemPieceBytes:
      return Piece::kBytes;
    case kTandemPieceFallbackByte:
      return Piece::kFallbackByte;
    case kTandemPieceText:
      return Piece::kText;
    default:
      return Piece::kNothing;
  }
}

std::optional<int32_t> Tokenizer::IdOf(std::string_view token) const {
  const int32_t id = tandem_tokenizer_id_of(tokenizer_.get(), token.data(), token.size());
  if (id < 0) return std::nullopt;
  return id;
}

std::optional<std::string> Tokenizer::TokenOf(int32_t id) const {
  std::string token;
  if (tandem_tokenizer_token_of(tokenizer_.get(), id, AppendText, &token) != 0) {
    return std::nullopt;
  }
  return token;
}

int32_t Tokenizer::id_count() const {
  return tandem_tokenizer_id_count(tokenizer_.get());
}

}  // namespace tandem
