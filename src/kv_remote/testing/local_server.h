#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "kv_remote/net/network_target.h"
#include "kv_remote/net/target_server.h"
#include "kv_target/memory_target.h"
#include "kv_target/testing/target_on.h"

/// A target server in a thread of the test.
namespace trimtab::kv_remote::testing {

class LocalServer {
 public:
  explicit LocalServer(std::uint64_t capacity_bytes = 32ULL << 20, ServerOptions options = {},
                       std::uint64_t shard_bytes = 1ULL << 20)
      : owned_(std::make_unique<kv_target::MemoryTarget>(
            kv_target::MemoryTarget::Options{capacity_bytes, shard_bytes, options.epoch})) {
    start(*owned_, std::move(options));
  }
  LocalServer(kv_target::Target& target, ServerOptions options) { start(target, std::move(options)); }
  ~LocalServer() { stop(); }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  void stop() {
    stop_ = true;
    server_->wake();
    if (thread_.joinable()) thread_.join();
  }
  /// After `stop`.
  ServerStats stats() const { return server_->stats(); }

  std::unique_ptr<NetworkTarget> client(NetworkOptions options = {}) const {
    options.server = address();
    auto target = NetworkTarget::open(std::move(options));
    if (!target || !(*target)->wait_until_connected(base::Nanos{5'000'000'000})) return nullptr;
    return std::move(*target);
  }

 private:
  void start(kv_target::Target& target, ServerOptions options) {
    auto server = TargetServer::listen(target, std::move(options));
    if (!server) throw std::runtime_error(base::to_string(server.error()));
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->serve(stop_); });
  }

  std::unique_ptr<kv_target::MemoryTarget> owned_;
  std::unique_ptr<TargetServer> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// A server and a client of it as one target.
class Pair final : public kv_target::testing::TargetOn<std::shared_ptr<LocalServer>, NetworkTarget> {
 public:
  explicit Pair(std::shared_ptr<LocalServer> server, NetworkOptions options = {}) {
    ground = std::move(server);
    target = ground->client(std::move(options));
  }
  const std::shared_ptr<LocalServer>& server() const { return ground; }
  NetworkTarget& client() { return *target; }
};

}  // namespace trimtab::kv_remote::testing
