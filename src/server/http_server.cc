#include "server/http_server.h"

#include <fmt/format.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "server/http_connection.h"

namespace tandem {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

ResponseWriter::ResponseWriter(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)), exchange_(connection_->exchange()) {}

ResponseWriter::~ResponseWriter() {
  if (!complete_) OnIoThread([](HttpConnection& connection) { connection.Close(); });
}

// Runs action(connection) on the I/O thread, if the answer is still open then.
template <typename Action>
void ResponseWriter::OnIoThread(Action action) {
  asio::post(connection_->executor(), [connection = connection_, exchange = exchange_,
                                       action = std::move(action)]() mutable {
    if (connection->IsOpen(exchange)) action(*connection);
  });
}

void ResponseWriter::Send(HttpResponse response) {
  complete_ = true;
  OnIoThread([response = std::move(response)](HttpConnection& c) { c.Send(response); });
}

void ResponseWriter::StartStream(std::string content_type) {
  OnIoThread([type = std::move(content_type)](HttpConnection& c) { c.StartStream(type); });
}

void ResponseWriter::Write(std::string data) {
  OnIoThread([data = std::move(data)](HttpConnection& c) { c.Write(data); });
}

void ResponseWriter::Finish() {
  complete_ = true;
  OnIoThread([](HttpConnection& c) { c.Finish(); });
}

void ResponseWriter::OnDisconnect(std::function<void()> callback) {
  asio::post(connection_->executor(), [connection = connection_, exchange = exchange_,
                                       callback = std::move(callback)]() mutable {
    if (connection->IsOpen(exchange)) {
      connection->OnDisconnect(std::move(callback));
    } else if (connection->closed()) {
      callback();
    }
  });
}

struct HttpServer::Impl {
  HttpServerOptions options;
  std::map<std::string, std::map<std::string, Handler>> routes;  // path -> method -> handler
  HttpConnection::Owner owner;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_pause{io};
  std::set<std::shared_ptr<HttpConnection>> connections;
  std::thread thread;
  int port = 0;

  Status Listen();
  void Accept();
  void OnAccept(const error_code& error, tcp::socket socket);
  void Dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  void CloseAll();
};

Status HttpServer::Impl::Listen() {
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return InvalidArgument(fmt::format("--host {}: {}", options.host, error.message()));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Unavailable(fmt::format("cannot listen on {} port {}: {}", options.host, options.port,
                                   error.message()));
  }
  port = acceptor.local_endpoint().port();
  return Status();
}

void HttpServer::Impl::Accept() {
  acceptor.async_accept(
      [this](const error_code& error, tcp::socket socket) { OnAccept(error, std::move(socket)); });
}

void HttpServer::Impl::OnAccept(const error_code& error, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (error) {
    // Most often no descriptor is free; trying again at once would turn in a circle.
    LogWarning("accepting a connection failed: {}", error.message());
    accept_pause.expires_after(std::chrono::milliseconds(100));
    accept_pause.async_wait([this](const error_code& cancelled) {
      if (!cancelled && acceptor.is_open()) Accept();
    });
    return;
  }
  if (connections.size() < options.max_connections) {
    auto connection = std::make_shared<HttpConnection>(std::move(socket), &owner);
    connections.insert(connection);
    connection->Start();
  } else {
    LogWarning("{} connections are open: another one was refused", connections.size());
  }
  Accept();
}

void HttpServer::Impl::Dispatch(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const auto route = routes.find(request.path);
  if (route == routes.end()) {
    writer->Send({404, owner.error_body(404, fmt::format("there is no {}", request.path))});
    return;
  }
  const auto handler = route->second.find(request.method == "HEAD" ? "GET" : request.method);
  if (handler == route->second.end()) {
    writer->Send(
        {405, owner.error_body(405, fmt::format("{} takes {}, not {}", request.path,
                                                route->second.begin()->first, request.method))});
    return;
  }
  handler->second(std::move(request), std::move(writer));
}

void HttpServer::Impl::CloseAll() {
  error_code ignored;
  acceptor.close(ignored);
  accept_pause.cancel();
  while (!connections.empty()) {
    const std::shared_ptr<HttpConnection> connection = *connections.begin();
    connection->Close();
  }
}

HttpServer::HttpServer(HttpServerOptions options, ErrorBody error_body)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  Impl* impl = impl_.get();
  impl->owner.options = &impl->options;
  impl->owner.error_body = std::move(error_body);
  impl->owner.dispatch = [impl](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    impl->Dispatch(std::move(request), std::move(writer));
  };
  impl->owner.closed = [impl](HttpConnection* connection) {
    impl->connections.erase(connection->shared_from_this());
  };
}

HttpServer::~HttpServer() {
  Stop();
  // What was posted since holds writers and sessions: it must go while the connections' context is
  // alive.
  impl_->io.restart();
  impl_->io.poll();
}

void HttpServer::Route(std::string method, std::string path, Handler handler) {
  impl_->routes[std::move(path)][std::move(method)] = std::move(handler);
}

Status HttpServer::Start() {
  RETURN_IF_ERROR(impl_->Listen());
  impl_->Accept();
  impl_->thread = std::thread([impl = impl_.get()] { impl->io.run(); });
  return Status();
}

int HttpServer::port() const {
  return impl_->port;
}

void HttpServer::Post(std::function<void()> task) {
  asio::post(impl_->io, std::move(task));
}

void HttpServer::Stop() {
  if (!impl_->thread.joinable()) return;
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->CloseAll();
    impl->io.stop();
  });
  impl_->thread.join();
}

}  // namespace tandem
