// One client's connection: parses requests, writes answers, watches for the client's leaving.
// Internal to the HTTP server; everything here runs on its I/O thread.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http_server.h"

namespace tandem {

// Invariants: 1. one read is always pending, unless the peer sends far ahead of our answers: so a
// client that leaves is seen at once; 2. at most one write is pending; 3. at most one request
// (exchange) is open, and a writer of an earlier one changes nothing.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  struct Owner {
    const HttpServerOptions* options;
    std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)> dispatch;
    HttpServer::ErrorBody error_body;
    std::function<void(HttpConnection*)> closed;
  };

  HttpConnection(boost::asio::ip::tcp::socket socket, const Owner* owner);

  void Start();
  void Close();

  boost::asio::any_io_executor executor() { return socket_.get_executor(); }
  uint64_t exchange() const { return exchange_; }
  bool closed() const { return closed_; }
  bool IsOpen(uint64_t exchange) const { return exchange == exchange_ && answering_; }

  // The answer's parts, as in ResponseWriter. REQUIRES: IsOpen(its exchange).
  void Send(const HttpResponse& response);
  void StartStream(const std::string& content_type);
  void Write(const std::string& data);
  void Finish();
  void OnDisconnect(std::function<void()> callback);

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void StartRequest();
  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  void Parse();
  void OnHeader();
  void Dispatch();
  void Refuse(const boost::system::error_code& error);
  void Append(std::string_view data);
  void WriteSome();
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void OnDrained();
  void SetDeadline(double seconds);
  void ClearDeadline();

  boost::asio::ip::tcp::socket socket_;
  const Owner* const owner_;
  boost::asio::steady_timer deadline_;
  uint64_t deadline_id_ = 0;          // of the one in force; others have lapsed
  std::array<char, 16 << 10> input_;  // the pending read's; most requests are one
  std::string buffer_;                // read and not yet parsed
  std::optional<Parser> parser_;
  bool reading_ = false;      // a read is pending
  bool header_seen_ = false;  // of the request being parsed
  bool answering_ = false;    // an exchange is open
  bool streaming_ = false;    // its answer is a stream
  bool chunked_ = false;      // ... of chunks (HTTP/1.1)
  bool head_only_ = false;    // the request was HEAD
  bool keep_alive_ = true;    // after this exchange
  bool discarding_ = false;  // answered with an error and closing: the rest of the input is dropped
  bool writing_ = false;     // a write is pending
  bool closed_ = false;
  uint64_t exchange_ = 0;
  std::string outgoing_;  // being written, from written_
  size_t written_ = 0;
  std::string pending_;  // to be written next
  std::function<void()> on_disconnect_;
};

}  // namespace tandem
