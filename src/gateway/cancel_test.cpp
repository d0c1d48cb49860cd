#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "gateway/test_support.h"

namespace trimtab::gateway {
namespace {

std::string request_text(const std::string& path, bool stream, const std::string& words) {
  const nlohmann::json body{{"model", "test-model"},
                            {"max_tokens", 3000},
                            {"stream", stream},
                            {"messages", {{{"role", "user"}, {"content", words}}}}};
  const std::string text = body.dump();
  return "POST " + path + " HTTP/1.1\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
}

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void expect_nothing_left(RunningGateway& gateway) {
  EXPECT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 0; })) << "in the engine";
  EXPECT_TRUE(RunningGateway::eventually([&] { return gateway.in_flight() == 0; })) << "in the gateway";
  const auto metrics = [&] { return gateway.get("/metrics").body; };
  EXPECT_TRUE(RunningGateway::eventually([&] {
    // The one connection is that of the scrape itself.
    const std::string text = metrics();
    return text.find("\ntrimtab_http_connections 1\n") != std::string::npos &&
           text.find("\ntrimtab_gateway_requests_in_flight 0\n") != std::string::npos;
  })) << metrics();
}

TEST(Cancel, ReachesTheEngineWithinAStepWhenNothingIsBeingWritten) {
  RunningGateway gateway(
      [](GatewayOptions&, FakeOptions& fake) { fake.first_token = base::Nanos{60'000'000'000}; });
  for (const bool stream : {false, true}) {
    auto client = gateway.connect();
    ASSERT_TRUE(client.send(request_text("/v1/messages", stream, "long prefill")));
    ASSERT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 1; }));
    client.close();
    EXPECT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 0; })) << "stream " << stream;
  }
  expect_nothing_left(gateway);
}

TEST(Cancel, TenLongPrefillsDoNotDelayTheNext) {
  RunningGateway gateway([](GatewayOptions& options, FakeOptions& fake) {
    options.config.gateway.requests_in_flight_max = 10;
    fake.first_token = base::Nanos{60'000'000'000};
  });
  {
    std::vector<net::BlockingClient> clients;
    for (int i = 0; i < 10; ++i) {
      clients.push_back(gateway.connect());
      ASSERT_TRUE(clients.back().send(request_text("/v1/chat/completions", i % 2 == 0, "long")));
    }
    ASSERT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 10; }));
  }
  ASSERT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 0; }));
  gateway.on_thread([&] {
    gateway.backend->options().first_token = base::Nanos{0};
    return 0;
  });
  auto client = gateway.connect();
  ASSERT_TRUE(client.send(request_text("/v1/chat/completions", false, "short")));
  EXPECT_EQ(client.read_response()->status, 200);
}

/// Clients that vanish at random stages, ten thousand times: bytes sent 0 to all, then up to a few bytes
/// read, closed or reset.
TEST(Cancel, TenThousandCancelsLeaveNothingBehind) {
  RunningGateway gateway([](GatewayOptions& options, FakeOptions& fake) {
    options.config.gateway.connections_max = 4096;
    options.config.gateway.requests_in_flight_max = 4096;
    fake.first_token = base::Nanos{500'000};
    fake.step = base::Nanos{200'000};
  });
  base::Prng prng(7);
  const std::string texts[] = {request_text("/v1/messages", true, std::string(200, 'a')),
                               request_text("/v1/messages", false, std::string(200, 'b')),
                               request_text("/v1/chat/completions", true, std::string(200, 'c')),
                               request_text("/v1/chat/completions", false, std::string(200, 'd'))};
  std::vector<net::BlockingClient> open;  // a few stay open for a while
  [[maybe_unused]] std::size_t resident_before = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (i == 3'000) resident_before = resident_bytes();
    auto client = gateway.connect();
    const std::string& text = texts[prng.below(4)];
    const bool whole = prng.below(4) > 0;
    ASSERT_TRUE(client.send(whole ? text : text.substr(0, prng.below(text.size()))));
    if (whole && prng.below(16) == 0) {
      (void)client.read_some();  // now inside the answer
    }
    if (prng.below(2) == 0) {
      open.push_back(std::move(client));
      if (open.size() > 32) open.erase(open.begin() + static_cast<std::ptrdiff_t>(prng.below(open.size())));
    } else if (prng.below(2) == 0) {
      client.reset();
    } else {
      client.close();
    }
  }
  open.clear();
  expect_nothing_left(gateway);
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory for a while, on purpose
  EXPECT_LT(resident_bytes(), resident_before + (8U << 20)) << "memory must not grow with cancels";
#endif
  const auto cancelled = gateway.on_thread([&] { return gateway.backend->cancelled_total(); });
  const auto submitted = gateway.on_thread([&] { return gateway.backend->submitted_total(); });
  EXPECT_GT(submitted, 5'000U);
  EXPECT_GT(cancelled, 2'000U) << "of " << submitted;
  auto client = gateway.connect();
  ASSERT_TRUE(client.send(request_text("/v1/messages", false, "alive")));
  EXPECT_EQ(client.read_response()->status, 200);
}

TEST(Cancel, AHundredBadRequestsDoNotTripAnything) {
  RunningGateway gateway;
  auto client = gateway.connect();
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(client.request("POST", "/v1/chat/completions", "{\"model\":")->status, 400);
  ASSERT_TRUE(client.send(request_text("/v1/chat/completions", false, "good")));
  EXPECT_EQ(client.read_response()->status, 200);
}

TEST(Cancel, AReaderThatDoesNotReadIsCutOffAndItsRequestCancelled) {
  RunningGateway gateway([](GatewayOptions& options, FakeOptions&) {
    options.profile.context_limit = base::TokenCount{200'000};
  });
  // About 90,000 tokens, each an event of some 200 bytes: more than socket buffers and the stream's bound
  // hold.
  auto flood = gateway.connect();
  flood.receive_buffer_bytes(2048);
  const nlohmann::json body{{"model", "test-model"},
                            {"stream", true},
                            {"messages", {{{"role", "user"}, {"content", std::string(90'000, 'z')}}}}};
  const std::string text = body.dump();
  ASSERT_TRUE(flood.send("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: " +
                         std::to_string(text.size()) + "\r\n\r\n" + text));
  EXPECT_TRUE(RunningGateway::eventually([&] {
    return gateway.get("/metrics").body.find("\ntrimtab_http_slow_readers_total 1\n") != std::string::npos;
  }));
  EXPECT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 0; }));
  EXPECT_GE(gateway.on_thread([&] { return gateway.backend->cancelled_total(); }), 1U);
}

TEST(Cancel, StoppingTheGatewayAnswersWhatWaits) {
  auto gateway = std::make_unique<RunningGateway>(
      [](GatewayOptions&, FakeOptions& fake) { fake.first_token = base::Nanos{60'000'000'000}; });
  auto client = gateway->connect();
  ASSERT_TRUE(client.send(request_text("/v1/messages", true, "waits")));
  ASSERT_TRUE(RunningGateway::eventually([&] { return gateway->running() == 1; }));
  gateway.reset();  // must neither hang nor touch what is gone
}

}  // namespace
}  // namespace trimtab::gateway
