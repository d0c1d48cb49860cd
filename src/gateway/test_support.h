#pragma once

#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "gateway/fake_backend.h"
#include "gateway/gateway.h"
#include "net/blocking_client.h"
#include "text/small_model.h"

namespace trimtab::gateway {

/// The vocabulary of tests: 256 bytes and a few merges, so that every character beyond ASCII is spread over
/// tokens.
inline PromptText small_text() {
  const std::string path = "/tmp/trimtab_gateway_" + std::to_string(::getpid()) + ".gguf";
  TRIMTAB_CHECK(text::small_model().write(path).has_value());
  auto loaded = PromptText::load(path);
  std::remove(path.c_str());
  TRIMTAB_CHECK(loaded.has_value(), loaded.has_value() ? "" : loaded.error().message);
  return std::move(*loaded);
}

inline GatewayOptions small_options() {
  GatewayOptions options;
  options.config.model.name = "test-model";
  options.config.gateway.port = 0;
  options.config.vision.images_max = 2;
  options.profile.context_limit = base::TokenCount{4096};
  options.profile.vision.formula = model::VisionSpec::Formula::kGrid;
  options.profile.vision.patch = 16;
  options.profile.vision.downsample = 4;
  options.profile.vision.max_tokens = 1024;
  options.profile.vision.pixels_max = 50'000'000;
  options.profile.vision.image_token = 0;
  return options;
}

class WallClock final : public base::Clock {
 public:
  base::Nanos now() const override {
    return base::Nanos{std::chrono::steady_clock::now().time_since_epoch().count()};
  }
};

/// A gateway over a fake engine on its own thread, as a process would run it.
class RunningGateway {
 public:
  explicit RunningGateway(const std::function<void(GatewayOptions&, FakeOptions&)>& change = {},
                          PromptText text = small_text()) {
    GatewayOptions options = small_options();
    FakeOptions fake = fake_options(text);
    if (change) change(options, fake);
    backend = std::make_unique<FakeBackend>(io_, fake);
    auto started = Gateway::start(io_, *backend, clock_, registry, std::move(text), options);
    TRIMTAB_CHECK(started.has_value(), started.has_value() ? "" : started.error().message);
    gateway = std::move(*started);
    port = gateway->port();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~RunningGateway() {
    on_thread([this] {
      gateway.reset();
      backend.reset();
      return 0;
    });
    work_.reset();
    io_.stop();
    thread_.join();
  }
  RunningGateway(const RunningGateway&) = delete;
  RunningGateway& operator=(const RunningGateway&) = delete;

  /// Runs `task` on the gateway's thread and waits for what it returns.
  template <class F>
  auto on_thread(F task) -> decltype(task()) {
    std::packaged_task<decltype(task())()> packaged(std::move(task));
    auto result = packaged.get_future();
    boost::asio::post(io_, [&packaged] { packaged(); });
    return result.get();
  }
  net::BlockingClient connect() const {
    auto client = net::BlockingClient::connect("127.0.0.1", port, std::chrono::seconds(20));
    TRIMTAB_CHECK(client.has_value(), client.has_value() ? "" : client.error().message);
    return std::move(*client);
  }
  net::Response post(const std::string& path, const std::string& body,
                     const net::Headers& headers = {}) const {
    auto client = connect();
    auto response = client.request("POST", path, body, headers);
    TRIMTAB_CHECK(response.has_value(), response.has_value() ? "" : response.error().message);
    return std::move(*response);
  }
  net::Response get(const std::string& path, const net::Headers& headers = {}) const {
    auto client = connect();
    auto response = client.request("GET", path, {}, headers);
    TRIMTAB_CHECK(response.has_value(), response.has_value() ? "" : response.error().message);
    return std::move(*response);
  }
  std::size_t running() {
    return on_thread([this] { return backend->running(); });
  }
  std::size_t in_flight() {
    return on_thread([this] { return gateway->requests_in_flight(); });
  }
  static bool eventually(const std::function<bool()>& condition,
                         std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return condition();
  }

  obs::Registry registry;
  std::unique_ptr<FakeBackend> backend;
  std::unique_ptr<Gateway> gateway;
  std::uint16_t port = 0;

 private:
  WallClock clock_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  std::thread thread_;
};

}  // namespace trimtab::gateway
