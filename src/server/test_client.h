// A small blocking HTTP client over a loopback socket, for tests: sends raw text and reads whole
// responses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem {

struct TestResponse {
  int status = 0;
  std::string headers;
  std::string body;
  std::vector<std::string> chunks;  // of a chunked body
};

class TestClient {
 public:
  explicit TestClient(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    // A test that waits for an answer that never comes fails instead of hanging.
    const timeval limit{30, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~TestClient() { Close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

  void Send(const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;  // the server closed: the response tells why
      sent += static_cast<size_t>(n);
    }
  }

  void SendRequest(const std::string& method, const std::string& path, const std::string& body) {
    Send(method + " " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  TestResponse Request(const std::string& method, const std::string& path,
                       const std::string& body = "") {
    SendRequest(method, path, body);
    return ReadResponse();
  }

  // Status 0 if the connection ends before a header.
  TestResponse ReadResponse(bool without_body = false) {
    TestResponse response;
    response.headers = ReadUntil("\r\n\r\n");
    if (response.headers.size() < 12) return response;
    response.status = std::atoi(response.headers.c_str() + 9);
    if (without_body || response.status == 100) return response;
    if (response.headers.find("Transfer-Encoding: chunked") != std::string::npos) {
      ReadChunks(&response);
    } else if (const size_t at = response.headers.find("Content-Length: ");
               at != std::string::npos) {
      response.body = ReadBytes(static_cast<size_t>(std::atoi(&response.headers[at + 16])));
    } else {
      response.body = ReadToEnd();
    }
    return response;
  }

  std::string ReadToEnd() {
    while (Fill()) {
    }
    return std::exchange(input_, "");
  }

  // The next chunk's data; empty at the end of the stream or of the connection.
  std::string ReadChunk() {
    const std::string size = ReadUntil("\r\n");
    const size_t bytes = std::strtoul(size.c_str(), nullptr, 16);
    std::string data = ReadBytes(bytes);
    ReadUntil("\r\n");
    return data;
  }

  std::string ReadUntil(const std::string& mark) {
    size_t at;
    while ((at = input_.find(mark)) == std::string::npos) {
      if (!Fill()) return std::exchange(input_, "");
    }
    return ReadBytes(at + mark.size());
  }

 private:
  void ReadChunks(TestResponse* response) {
    for (std::string chunk; !(chunk = ReadChunk()).empty();) {
      response->body += chunk;
      response->chunks.push_back(std::move(chunk));
    }
  }

  std::string ReadBytes(size_t count) {
    while (input_.size() < count && Fill()) {
    }
    std::string bytes = input_.substr(0, count);
    input_.erase(0, count);
    return bytes;
  }

  bool Fill() {
    char buffer[4096];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    input_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int socket_;
  std::string input_;
};

}  // namespace tandem
