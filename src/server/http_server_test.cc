#include "server/http_server.h"

#include <gtest/gtest.h>

#include <future>

#include "server/test_client.h"

namespace tandem {
namespace {

using Writer = std::shared_ptr<ResponseWriter>;

// Routes: GET /hello, POST /echo, GET /stream (three parts), GET /keep (hands its writer to the
// test).
class HttpServerTest : public testing::Test {
 protected:
  void StartServer(HttpServerOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<HttpServer>(options, [](int status, const std::string& message) {
      return std::to_string(status) + ": " + message;
    });
    server_->Route("GET", "/hello", [](HttpRequest, Writer w) { w->Send({200, "hello"}); });
    server_->Route("POST", "/echo", [](HttpRequest request, Writer w) {
      w->Send({200, request.body});
    });
    server_->Route("GET", "/stream", [](HttpRequest, Writer w) {
      w->StartStream("text/plain");
      for (const char* part : {"one ", "two ", "three"}) w->Write(part);
      w->Finish();
    });
    server_->Route("GET", "/keep", [this](HttpRequest, Writer w) { kept_.set_value(w); });
    ASSERT_TRUE(server_->Start().ok());
  }

  std::promise<Writer> kept_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  StartServer();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Request("GET", "/hello?x=1").body, "hello");
    EXPECT_EQ(client.Request("POST", "/echo", "text").body, "text");
    const TestResponse stream = client.Request("GET", "/stream");
    EXPECT_EQ(stream.status, 200);
    EXPECT_EQ(stream.chunks.size(), 3u);
    EXPECT_EQ(stream.body, "one two three");
  }
}

TEST_F(HttpServerTest, AnswersRequestsThatWereSentAheadInOrder) {
  StartServer();
  TestClient client(server_->port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
  }
  client.Send(all);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.ReadResponse().body, std::to_string(10 + i));
}

TEST_F(HttpServerTest, TakesRequestsInSmallPiecesAndChunkedBodies) {
  StartServer();
  TestClient client(server_->port());
  const std::string request =
      "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  for (const char c : request) client.Send(std::string(1, c));
  EXPECT_EQ(client.ReadResponse().body, "abcde");
}

TEST_F(HttpServerTest, SendsContinueToThoseWhoWait) {
  StartServer();
  TestClient client(server_->port());
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().status, 100);
  client.Send("abc");
  EXPECT_EQ(client.ReadResponse().body, "abc");
}

TEST_F(HttpServerTest, NamesUnknownPathsAndMethods) {
  StartServer();
  TestClient client(server_->port());
  const TestResponse unknown = client.Request("GET", "/nothing");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.body, "404: there is no /nothing");
  const TestResponse method = client.Request("GET", "/echo");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.body, "405: /echo takes POST, not GET");
  EXPECT_EQ(client.Request("GET", "/hello").status, 200);
}

TEST_F(HttpServerTest, RefusesWhatIsTooLargeOrNoHttp) {
  HttpServerOptions options;
  options.max_body_bytes = 100;
  StartServer(options);
  EXPECT_EQ(TestClient(server_->port()).Request("POST", "/echo", std::string(100, 'x')).status,
            200);
  EXPECT_EQ(TestClient(server_->port()).Request("POST", "/echo", std::string(101, 'x')).status,
            413);
  // Larger than what the sockets hold: the answer must survive the unread rest.
  EXPECT_EQ(TestClient(server_->port()).Request("POST", "/echo", std::string(8 << 20, 'x')).status,
            413);
  EXPECT_EQ(TestClient(server_->port()).Request("GET", "/" + std::string(20000, 'x')).status, 431);
  TestClient garbage(server_->port());
  garbage.Send("\x16\x03\x01 what is this\r\n\r\n");
  EXPECT_EQ(garbage.ReadResponse().status, 400);
  EXPECT_EQ(garbage.ReadToEnd(), "");  // closed
}

TEST_F(HttpServerTest, HeadHasNoBodyAndOldClientsGetPlainStreams) {
  StartServer();
  TestClient client(server_->port());
  client.SendRequest("HEAD", "/hello", "");
  const TestResponse head = client.ReadResponse(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.find("Content-Length: 5"), std::string::npos);
  EXPECT_EQ(client.Request("GET", "/hello").body, "hello");
  TestClient old(server_->port());
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.ReadResponse().body, "one two three");
}

TEST_F(HttpServerTest, TellsThatAClientHasGone) {
  StartServer();
  TestClient client(server_->port());
  client.SendRequest("GET", "/keep", "");
  const Writer writer = kept_.get_future().get();
  std::promise<void> gone;
  writer->OnDisconnect([&gone] { gone.set_value(); });
  client.Close();
  gone.get_future().get();
  std::promise<void> late;  // who asks afterwards is told too
  writer->OnDisconnect([&late] { late.set_value(); });
  late.get_future().get();
  writer->Send({200, "nobody"});
}

TEST_F(HttpServerTest, ARequestMayComeWhileTheLastAnswerIsUnread) {
  StartServer();
  TestClient client(server_->port());
  client.SendRequest("GET", "/keep", "");
  const std::string large(64 << 20, 'x');  // more than the sockets hold
  kept_.get_future().get()->Send({200, large});
  client.SendRequest("GET", "/hello", "");
  // The server has seen the second request once another client's, sent later, is answered.
  EXPECT_EQ(TestClient(server_->port()).Request("GET", "/hello").body, "hello");
  EXPECT_EQ(client.ReadResponse().body.size(), large.size());
  EXPECT_EQ(client.ReadResponse().body, "hello");
  EXPECT_EQ(client.Request("GET", "/hello").body, "hello");
}

TEST_F(HttpServerTest, ACompletedAnswerHasNoDisconnect) {
  StartServer();
  bool called = false;
  TestClient client(server_->port());
  client.SendRequest("GET", "/keep", "");
  const Writer writer = kept_.get_future().get();
  writer->OnDisconnect([&called] { called = true; });
  writer->Send({200, "done"});
  EXPECT_EQ(client.ReadResponse().body, "done");
  client.Close();
  server_->Stop();
  EXPECT_FALSE(called);
}

TEST_F(HttpServerTest, AWriterThatIsDroppedClosesTheConnection) {
  StartServer();
  TestClient client(server_->port());
  client.SendRequest("GET", "/keep", "");
  Writer writer = kept_.get_future().get();
  kept_ = {};
  writer.reset();
  EXPECT_EQ(client.ReadResponse().status, 0);
}

TEST_F(HttpServerTest, ASlowReaderIsCutOffAndHoldsUpNobody) {
  HttpServerOptions options;
  options.max_buffered_bytes = 64 << 10;
  StartServer(options);
  TestClient slow(server_->port());
  slow.SendRequest("GET", "/keep", "");
  const Writer writer = kept_.get_future().get();
  std::promise<void> cut;
  writer->OnDisconnect([&cut] { cut.set_value(); });
  writer->StartStream("text/plain");
  std::future<void> was_cut = cut.get_future();
  const std::string part(32 << 10, 'x');
  // The kernel's buffers take some megabytes before ours fills.
  for (int i = 0;
       i < 4096 && was_cut.wait_for(std::chrono::seconds(0)) != std::future_status::ready; ++i) {
    writer->Write(part);
    if (i % 64 == 0) {
      EXPECT_EQ(TestClient(server_->port()).Request("GET", "/hello").body, "hello");
    }
  }
  was_cut.get();
}

TEST_F(HttpServerTest, LimitsConnectionsAndFreesThem) {
  HttpServerOptions options;
  options.max_connections = 2;
  StartServer(options);
  {
    TestClient first(server_->port()), second(server_->port());
    EXPECT_EQ(first.Request("GET", "/hello").status, 200);
    EXPECT_EQ(second.Request("GET", "/hello").status, 200);
    EXPECT_EQ(TestClient(server_->port()).Request("GET", "/hello").status, 0);
  }
  int status = 0;  // the closing is seen soon, not at once
  for (int i = 0; i < 1000 && status != 200; ++i) {
    status = TestClient(server_->port()).Request("GET", "/hello").status;
  }
  EXPECT_EQ(status, 200);
}

TEST_F(HttpServerTest, StopEndsOpenRequests) {
  StartServer();
  TestClient client(server_->port());
  client.SendRequest("GET", "/keep", "");
  const Writer writer = kept_.get_future().get();
  std::promise<void> gone;
  writer->OnDisconnect([&gone] { gone.set_value(); });
  server_->Stop();
  gone.get_future().get();
  EXPECT_EQ(client.ReadResponse().status, 0);
  writer->Write("into nothing");
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  StartServer();
  HttpServerOptions options;
  options.port = server_->port();
  const auto body = [](int, const std::string&) { return std::string(); };
  const Status status = HttpServer(options, body).Start();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(std::to_string(options.port)), std::string::npos);
  options.host = "no such host";
  EXPECT_FALSE(HttpServer(options, body).Start().ok());
}

}  // namespace
}  // namespace tandem
