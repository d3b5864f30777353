#include "server/api_session.h"

#include <utility>

#include "base/log.h"

namespace tandem {

ApiSession::ApiSession(const ApiRequest& request, const ServedModel& model,
                       std::shared_ptr<ResponseWriter> writer)
    : request_(request),
      response_(request, model),
      transcript_(*model.tokenizer, request.skip_special_tokens),
      writer_(std::move(writer)) {}

void ApiSession::OnEvent(const TokenEvent& event) {
  const FinishReason reason = event.finish_reason;
  if (reason == FinishReason::kCancelled || reason == FinishReason::kTimeout ||
      reason == FinishReason::kError) {
    return Fail(event);
  }
  if (request_.stream) return Stream(event);
  transcript_.Append(event);
  if (reason == FinishReason::kNone) return;
  writer_->Send({200, response_.Whole(transcript_, event)});
}

void ApiSession::Stream(const TokenEvent& event) {
  if (!started_) {
    started_ = true;
    writer_->StartStream("text/event-stream; charset=utf-8");
    if (request_.kind == ApiKind::kChat) WriteSse(response_.RoleChunk());
  }
  const size_t old_logprobs = transcript_.logprobs().size();
  const std::string text = transcript_.Append(event);
  const auto entries = std::span(transcript_.logprobs()).subspan(old_logprobs);
  if (!text.empty() || !entries.empty()) WriteSse(response_.TextChunk(text, entries));
  if (event.finish_reason == FinishReason::kNone) return;
  WriteSse(response_.FinishChunk(event.finish_reason));
  if (request_.include_usage) WriteSse(response_.UsageChunk(transcript_, event));
  WriteSse("[DONE]");
  writer_->Finish();
}

void ApiSession::Fail(const TokenEvent& event) {
  ApiError error;
  if (event.finish_reason == FinishReason::kCancelled) {
    error = MakeApiError(503, "the request was cancelled");
  } else if (event.finish_reason == FinishReason::kTimeout) {
    error = MakeApiError(504, "the request ran out of time (--request-timeout)");
  } else {
    error = MakeApiError(500, event.error);
    LogError("request {} failed: {}", event.request_id, event.error);
  }
  if (!started_) return writer_->Send({error.status, ErrorJson(error)});
  WriteSse(ErrorJson(error));
  WriteSse("[DONE]");
  writer_->Finish();
}

void ApiSession::WriteSse(const std::string& data) {
  writer_->Write("data: " + data + "\n\n");
}

}  // namespace tandem
