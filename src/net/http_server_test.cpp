#include "net/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "net/blocking_client.h"

namespace trimtab::net {
namespace {

using namespace std::chrono_literals;

/// Behaves by path: /echo, /hold (never answers), /stream (opens and waits), /flood, /drop, /slow (on
/// demand).
class PathHandler final : public Handler {
 public:
  std::optional<Response> screen(const RequestHead& head) override {
    ++screened;
    if (head.path() == "/shed") return Response{503, {{"Retry-After", "1"}}, "shed"};
    return std::nullopt;
  }
  void handle(Request request, std::shared_ptr<ResponseWriter> writer) override {
    ++handled;
    const std::string path(request.path());
    if (path == "/echo") return writer->respond({200, {}, request.method + ":" + request.body});
    if (path == "/drop") return;
    writer->on_disconnect([this] { ++disconnects; });
    if (path == "/stream" || path == "/flood") {
      writer->begin_stream(200, {{"Content-Type", "text/event-stream"}});
      writer->write("data: one\n\n");
      const std::string block(64 << 10, 'x');
      while (path == "/flood" && writer->write(block)) {
      }
    }
    held.push_back(std::move(writer));
  }
  Response refuse(const RequestHead* head, int status, std::string_view why) override {
    return {status, {}, std::string(head == nullptr ? "?" : head->target) + " " + std::string(why)};
  }

  std::atomic<int> screened = 0, handled = 0, disconnects = 0;
  std::vector<std::shared_ptr<ResponseWriter>> held;  // touched on the io thread only
};

class HttpServerTest : public testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    auto server = Server::listen(io_, options, handler_);
    ASSERT_TRUE(server.has_value()) << to_string(server.error());
    server_ = std::move(*server);
    thread_ = std::thread([this] { io_.run(); });
  }
  template <class F>
  auto on_thread(F task) {
    std::packaged_task<decltype(task())()> packaged(std::move(task));
    auto result = packaged.get_future();
    boost::asio::post(io_, [&packaged] { packaged(); });
    return result.get();
  }
  ~HttpServerTest() override {
    if (!thread_.joinable()) return;
    on_thread([this] {
      handler_.held.clear();
      server_.reset();
    });
    work_.reset();
    io_.stop();
    thread_.join();
  }
  ServerStats stats() {
    return on_thread([this] { return server_->stats(); });
  }
  BlockingClient connect() {
    auto client = BlockingClient::connect("127.0.0.1", server_->port(), 60s);
    EXPECT_TRUE(client.has_value());
    return std::move(*client);
  }
  template <class F>
  bool eventually(F condition, std::chrono::milliseconds limit = 20s) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if (condition()) return true;
      std::this_thread::sleep_for(2ms);
    }
    return condition();
  }

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  PathHandler handler_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(HttpServerTest, AnswersOverOneKeptConnection) {
  start();
  auto client = connect();
  for (int i = 0; i < 3; ++i) {
    const auto response = client.request("POST", "/echo?x=1", "body" + std::to_string(i));
    ASSERT_TRUE(response.has_value()) << to_string(response.error());
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, "POST:body" + std::to_string(i));
    EXPECT_FALSE(find_header(response->headers, "date").empty());
  }
  EXPECT_EQ(stats().accepted_total, 1U);
}

TEST_F(HttpServerTest, ReadsARequestThatArrivesByteByByte) {
  start();
  auto client = connect();
  const std::string request = "\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
  for (const char c : request) {
    ASSERT_TRUE(client.send({&c, 1}).has_value());
    if (c == '\n') std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(client.read_response()->body, "POST:hello");
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  start();
  auto client = connect();
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "5;ext=1\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nTrailer: x\r\n\r\n"));
  EXPECT_EQ(client.read_response()->body, "POST:hello world");
  EXPECT_EQ(client.request("GET", "/echo")->body, "GET:");
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  auto client = connect();
  std::string requests;
  for (int i = 0; i < 50; ++i)
    requests += "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
  ASSERT_TRUE(client.send(requests));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read_response()->body, "POST:" + std::to_string(10 + i));
}

TEST_F(HttpServerTest, RefusesMalformedRequests) {
  start();
  for (const std::string text :
       {"\x16\x03\x01 hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nbad header\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    auto client = connect();
    ASSERT_TRUE(client.send(text));
    const auto response = client.read_response();
    ASSERT_TRUE(response.has_value()) << text;
    EXPECT_EQ(response->status, 400) << text;
    EXPECT_EQ(find_header(response->headers, "connection"), "close");
    EXPECT_EQ(client.read_some().value(), "");
  }
  EXPECT_EQ(handler_.handled, 0);
}

TEST_F(HttpServerTest, RefusesHugeHeadersAndEndlessChunkExtensions) {
  start();
  auto client = connect();
  ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nX: " + std::string(20'000, 'a')));
  EXPECT_EQ(client.read_response()->status, 431);
  auto other = connect();
  ASSERT_TRUE(
      other.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;" + std::string(300'000, 'e')));
  EXPECT_EQ(other.read_response()->status, 400);
}

TEST_F(HttpServerTest, RefusesABodyOverTheLimitBeforeReadingIt) {
  ServerOptions options;
  options.body_bytes_max = 1000;
  start(options);
  auto declared = connect();
  ASSERT_TRUE(declared.send("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"));
  const auto response = declared.read_response();
  EXPECT_EQ(response->status, 413);
  EXPECT_EQ(response->body.substr(0, 5), "/echo");
  // A client that sends all of a large body regardless still gets to read the refusal.
  auto stubborn = connect();
  ASSERT_TRUE(stubborn.send("POST /echo HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n"));
  ASSERT_TRUE(stubborn.send(std::string(9'000'000, 'b')));
  EXPECT_EQ(stubborn.read_response()->status, 413);
  auto chunked = connect();
  ASSERT_TRUE(chunked.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
                           std::string(1001, 'c')));
  EXPECT_EQ(chunked.read_response()->status, 413);
  EXPECT_EQ(stats().bodies_bytes, 0U);
}

TEST_F(HttpServerTest, BoundsTheBodiesOfAllConnectionsTogether) {
  ServerOptions options;
  options.bodies_bytes_max = 1500;
  start(options);
  auto first = connect();
  ASSERT_TRUE(first.send("POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"));
  ASSERT_TRUE(eventually([&] { return stats().bodies_bytes == 1000; }));
  auto second = connect();
  ASSERT_TRUE(second.send("POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"));
  EXPECT_EQ(second.read_response()->status, 503);
  ASSERT_TRUE(first.send(std::string(1000, 'x')));
  EXPECT_EQ(first.read_response()->status, 200);
}

TEST_F(HttpServerTest, ScreensBeforeTheBody) {
  start();
  auto client = connect();
  ASSERT_TRUE(client.send("POST /shed HTTP/1.1\r\nContent-Length: 30000000\r\nExpect: 100-continue\r\n\r\n"));
  const auto response = client.read_response();
  EXPECT_EQ(response->status, 503);
  EXPECT_EQ(find_header(response->headers, "retry-after"), "1");
  auto kept = connect();
  EXPECT_EQ(kept.request("GET", "/shed")->status, 503);
  EXPECT_EQ(kept.request("GET", "/echo")->status, 200) << "a refusal without a body keeps the connection";
  EXPECT_EQ(handler_.handled, 1);
}

TEST_F(HttpServerTest, Sends100ContinueOnlyWhenAsked) {
  start();
  auto client = connect();
  ASSERT_TRUE(client.send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.read_some().value(), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send("ok"));
  EXPECT_EQ(client.read_response()->body, "POST:ok");
}

TEST_F(HttpServerTest, HeadCarriesNoBodyAndOptionsIsOrdinary) {
  start();
  auto client = connect();
  const auto head = client.request("HEAD", "/echo");
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(find_header(head->headers, "content-length"), "5");
  EXPECT_EQ(client.request("OPTIONS", "/echo")->body, "OPTIONS:");
}

TEST_F(HttpServerTest, Http10ClosesAfterItsAnswer) {
  start();
  auto client = connect();
  ASSERT_TRUE(client.send("GET /echo HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(client.read_response()->body, "GET:");
  EXPECT_EQ(client.read_some().value(), "");
}

TEST_F(HttpServerTest, AWriterThatIsDroppedAnswers500) {
  start();
  auto client = connect();
  EXPECT_EQ(client.request("GET", "/drop")->status, 500);
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesAtEveryStage) {
  start();
  connect().close();  // before anything
  auto head = connect();
  ASSERT_TRUE(head.send("POST /hold HTT"));
  head.close();  // inside the head
  auto body = connect();
  ASSERT_TRUE(body.send("POST /hold HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"));
  // A reset may throw away what the server has not read yet: it must have come as far as the body.
  ASSERT_TRUE(eventually([&] { return handler_.screened == 1; }));
  body.reset();  // inside the body
  EXPECT_TRUE(eventually([&] { return stats().truncated_total == 2; }));
  EXPECT_TRUE(eventually([&] { return stats().connections == 0; }));
  EXPECT_EQ(handler_.handled, 0);
  EXPECT_EQ(handler_.disconnects, 0);

  auto waiting = connect();
  ASSERT_TRUE(waiting.send("GET /hold HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(eventually([&] { return handler_.handled == 1; }));
  waiting.close();  // while nothing is written
  EXPECT_TRUE(eventually([&] { return handler_.disconnects == 1; }));
  auto streaming = connect();
  ASSERT_TRUE(streaming.send("GET /stream HTTP/1.1\r\n\r\n"));
  ASSERT_FALSE(streaming.read_some()->empty());
  streaming.reset();  // inside a stream
  EXPECT_TRUE(eventually([&] { return handler_.disconnects == 2; }));
  auto half = connect();
  ASSERT_TRUE(half.send("GET /hold HTTP/1.1\r\n\r\n"));
  half.shutdown_send();  // half closed counts as gone
  EXPECT_TRUE(eventually([&] { return handler_.disconnects == 3; }));
  EXPECT_TRUE(eventually([&] { return stats().connections == 0; }));
  EXPECT_EQ(stats().requests_in_flight, 0U);
  EXPECT_EQ(stats().disconnects_total, 3U);
}

TEST_F(HttpServerTest, NoticesDepartureBehindUnreadPipelinedBytes) {
  ServerOptions options;
  options.pipeline_bytes_max = 1000;
  start(options);
  auto client = connect();
  ASSERT_TRUE(client.send("GET /hold HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + std::string(100'000, 'p')));
  ASSERT_TRUE(eventually([&] { return handler_.handled == 1; }));
  std::this_thread::sleep_for(20ms);
  client.shutdown_send();
  EXPECT_TRUE(eventually([&] { return handler_.disconnects == 1; }));
}

TEST_F(HttpServerTest, CutsOffAReaderThatDoesNotRead) {
  ServerOptions options;
  options.send_buffer_bytes = 16 << 10;
  options.stream_bytes_max = 256 << 10;
  start(options);
  auto client = connect();
  client.receive_buffer_bytes(4096);
  ASSERT_TRUE(client.send("GET /flood HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return handler_.disconnects == 1; }));
  EXPECT_EQ(stats().slow_readers_total, 1U);
  EXPECT_TRUE(eventually([&] { return stats().connections == 0; }));
}

TEST_F(HttpServerTest, CutsOffAReaderWhoseOutputMakesNoProgress) {
  ServerOptions options;
  options.send_buffer_bytes = 16 << 10;
  options.write_timeout = base::Nanos{300'000'000};
  start(options);
  auto client = connect();
  client.receive_buffer_bytes(4096);
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(eventually([&] { return handler_.handled == 1; }));
  on_thread([&] { handler_.held.back()->write(std::string(1 << 19, 'x')); });
  EXPECT_TRUE(eventually([&] { return handler_.disconnects == 1; }));
  EXPECT_EQ(stats().slow_readers_total, 1U);
}

TEST_F(HttpServerTest, TimesOutSlowHeadsBodiesAndIdleConnections) {
  ServerOptions options;
  options.head_timeout = options.body_timeout = options.idle_timeout = base::Nanos{1'000'000'000};
  start(options);
  auto head = connect();
  ASSERT_TRUE(head.send("GET /echo HT"));
  EXPECT_EQ(head.read_response()->status, 408);
  auto body = connect();
  ASSERT_TRUE(body.send("POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"));
  EXPECT_EQ(body.read_response()->status, 408);
  auto idle = connect();
  EXPECT_EQ(idle.request("GET", "/echo")->status, 200);
  EXPECT_EQ(idle.read_some().value(), "");
  EXPECT_EQ(stats().timeouts_total, 3U);
}

TEST_F(HttpServerTest, TurnsAwayConnectionsBeyondTheLimit) {
  ServerOptions options;
  options.connections_max = 2;
  start(options);
  auto a = connect();
  auto b = connect();
  ASSERT_EQ(a.request("GET", "/echo")->status, 200);
  ASSERT_EQ(b.request("GET", "/echo")->status, 200);
  auto c = connect();
  EXPECT_EQ(c.read_response()->status, 503);
  a.close();
  c.close();
  ASSERT_TRUE(eventually([&] { return stats().connections == 1; }));
  EXPECT_EQ(connect().request("GET", "/echo")->status, 200);
}

TEST_F(HttpServerTest, DrainsBeforeItStops) {
  start();
  auto idle = connect();
  ASSERT_EQ(idle.request("GET", "/echo")->status, 200);
  auto busy = connect();
  ASSERT_TRUE(busy.send("GET /stream HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(eventually([&] { return handler_.handled == 2; }));
  std::promise<void> drained;
  auto done = drained.get_future();
  on_thread([&] { server_->drain(base::Nanos{60'000'000'000}, [&] { drained.set_value(); }); });
  EXPECT_EQ(idle.read_some().value(), "");
  EXPECT_EQ(done.wait_for(400ms), std::future_status::timeout) << "a stream is still open";
  EXPECT_FALSE(BlockingClient::connect("127.0.0.1", server_->port()).has_value());
  on_thread([&] {
    handler_.held.back()->write("data: two\n\n");
    handler_.held.back()->finish();
  });
  EXPECT_EQ(busy.read_response()->body, "data: one\n\ndata: two\n\n");
  EXPECT_EQ(done.wait_for(60s), std::future_status::ready);
}

TEST_F(HttpServerTest, ATakenPortIsOneClearLine) {
  start();
  boost::asio::io_context io;
  ServerOptions options;
  options.port = server_->port();
  const auto second = Server::listen(io, options, handler_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, base::Code::kUnavailable);
  EXPECT_NE(second.error().message.find("port " + std::to_string(options.port)), std::string::npos);
  options.host = "nowhere";
  EXPECT_EQ(Server::listen(io, options, handler_).error().code, base::Code::kInvalidArgument);
}

}  // namespace
}  // namespace trimtab::net
