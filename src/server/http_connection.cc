#include "server/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// How far a client may send ahead of our answers before we stop listening to it.
constexpr size_t kMaxReadAhead = 64 << 10;
// How long an unread rest of a refused request is drained, so that the client can read why (closing
// a socket with unread input resets it).
constexpr double kDrainSeconds = 2;

std::string_view Reason(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

int StatusOfParseError(const error_code& error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit) return 431;
  return 400;
}

}  // namespace

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, const Owner* owner)
    : socket_(std::move(socket)), owner_(owner), deadline_(socket_.get_executor()) {}

void HttpConnection::Start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  StartRequest();
}

void HttpConnection::StartRequest() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(owner_->options->max_header_bytes));
  parser_->body_limit(owner_->options->max_body_bytes);
  parser_->eager(true);
  header_seen_ = false;
  SetDeadline(buffer_.size() > 0 ? owner_->options->request_timeout_seconds
                                 : owner_->options->idle_timeout_seconds);
  Parse();
  Read();
}

void HttpConnection::Read() {
  const bool ahead = answering_ || !parser_;  // of an answer that is made or still being sent
  if (reading_ || closed_ || (ahead && buffer_.size() >= kMaxReadAhead)) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(input_),
                          [self = shared_from_this()](const error_code& error, size_t bytes) {
                            self->reading_ = false;
                            self->OnRead(error, bytes);
                          });
}

void HttpConnection::OnRead(const error_code& error, size_t bytes) {
  if (closed_) return;
  if (error) return Close();
  if (discarding_) return Read();
  const bool first_bytes = !answering_ && buffer_.size() == 0 && !header_seen_;
  buffer_.append(input_.data(), bytes);
  if (!answering_ && parser_) {  // without a parser, StartRequest looks at the buffer later
    if (first_bytes) SetDeadline(owner_->options->request_timeout_seconds);
    Parse();
  }
  Read();
}

void HttpConnection::Parse() {
  while (buffer_.size() > 0 && !parser_->is_done()) {
    error_code error;
    const size_t used = parser_->put(asio::buffer(buffer_), error);
    buffer_.erase(0, used);
    if (error == http::error::need_more) {
      // The parser itself looks at the limit only when it has seen the header's end.
      if (parser_->is_header_done() || buffer_.size() <= owner_->options->max_header_bytes) break;
      error = http::error::header_limit;
    }
    if (error) return Refuse(error);
    if (parser_->is_header_done()) OnHeader();
    if (used == 0) break;
  }
  if (parser_->is_header_done()) OnHeader();
  if (parser_->is_done()) Dispatch();
}

void HttpConnection::OnHeader() {
  if (header_seen_) return;
  header_seen_ = true;
  if (!parser_->is_done() &&
      boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    Append("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

void HttpConnection::Dispatch() {
  Parser::value_type message = parser_->release();
  ++exchange_;
  answering_ = true;
  streaming_ = false;
  chunked_ = message.version() >= 11;
  head_only_ = message.method() == http::verb::head;
  keep_alive_ = message.keep_alive();
  ClearDeadline();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = std::string(message.target());
  request.path.resize(std::min(request.path.find('?'), request.path.size()));
  request.body = std::move(message.body());
  owner_->dispatch(std::move(request), std::make_shared<ResponseWriter>(shared_from_this()));
}

void HttpConnection::Refuse(const error_code& error) {
  ++exchange_;
  answering_ = true;
  streaming_ = head_only_ = keep_alive_ = false;
  discarding_ = true;
  buffer_.clear();
  const int status = StatusOfParseError(error);
  std::string why = "not a valid HTTP request: " + error.message();
  if (status == 413) {
    why = fmt::format("the body is larger than {} bytes", owner_->options->max_body_bytes);
  } else if (status == 431) {
    why = fmt::format("the header is larger than {} bytes", owner_->options->max_header_bytes);
  }
  Send({status, owner_->error_body(status, why)});
}

void HttpConnection::Send(const HttpResponse& response) {
  Append(fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}\r\n",
                     response.status, Reason(response.status), response.content_type,
                     response.body.size(), keep_alive_ ? "" : "Connection: close\r\n"));
  if (!head_only_) Append(response.body);
  Finish();
}

void HttpConnection::StartStream(const std::string& content_type) {
  streaming_ = true;
  if (!chunked_)
    keep_alive_ = false;  // HTTP/1.0: the end of the stream is the end of the connection
  Append(fmt::format("HTTP/1.1 200 OK\r\nContent-Type: {}\r\nCache-Control: no-cache\r\n{}{}\r\n",
                     content_type, chunked_ ? "Transfer-Encoding: chunked\r\n" : "",
                     keep_alive_ ? "" : "Connection: close\r\n"));
}

void HttpConnection::Write(const std::string& data) {
  if (data.empty() || head_only_) return;
  const size_t buffered = pending_.size() + outgoing_.size() - written_;
  if (buffered + data.size() > owner_->options->max_buffered_bytes) {
    LogWarning("a client left {} bytes of its stream unread: connection closed", buffered);
    return Close();
  }
  if (!chunked_) return Append(data);
  Append(fmt::format("{:x}\r\n", data.size()));
  Append(data);
  Append("\r\n");
}

void HttpConnection::Finish() {
  if (streaming_ && chunked_ && !head_only_) Append("0\r\n\r\n");
  answering_ = false;
  on_disconnect_ = nullptr;
  parser_.reset();
  if (!writing_ && !closed_) OnDrained();
}

void HttpConnection::OnDisconnect(std::function<void()> callback) {
  on_disconnect_ = std::move(callback);
}

void HttpConnection::Append(std::string_view data) {
  pending_.append(data);
  if (!writing_ && !closed_) WriteSome();
}

void HttpConnection::WriteSome() {
  if (written_ == outgoing_.size()) {
    outgoing_.clear();
    written_ = 0;
    outgoing_.swap(pending_);
  }
  writing_ = true;
  SetDeadline(owner_->options->write_timeout_seconds);
  socket_.async_write_some(asio::buffer(outgoing_.data() + written_, outgoing_.size() - written_),
                           [self = shared_from_this()](const error_code& error, size_t bytes) {
                             self->writing_ = false;
                             self->OnWritten(error, bytes);
                           });
}

void HttpConnection::OnWritten(const error_code& error, size_t bytes) {
  if (closed_) return;
  if (error) return Close();
  written_ += bytes;
  if (written_ < outgoing_.size() || !pending_.empty()) return WriteSome();
  OnDrained();
}

void HttpConnection::OnDrained() {
  ClearDeadline();
  if (answering_) return;  // the computation may take its time
  if (parser_) {           // only a "100 Continue" was written: the request is still being read
    SetDeadline(owner_->options->request_timeout_seconds);
  } else if (discarding_) {
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    SetDeadline(kDrainSeconds);
    Read();
  } else if (keep_alive_) {
    StartRequest();
  } else {
    Close();
  }
}

void HttpConnection::SetDeadline(double seconds) {
  deadline_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  // A wait that has ended already can't be cancelled: its number tells that it lapsed.
  deadline_.async_wait([self = shared_from_this(), id = ++deadline_id_](const error_code& error) {
    if (!error && id == self->deadline_id_) self->Close();
  });
}

void HttpConnection::ClearDeadline() {
  ++deadline_id_;
  deadline_.cancel();
}

void HttpConnection::Close() {
  if (closed_) return;
  closed_ = true;
  answering_ = false;
  ClearDeadline();
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  if (auto callback = std::exchange(on_disconnect_, nullptr)) callback();
  owner_->closed(this);
}

}  // namespace tandem
