#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kv_remote/net/socket.h"

namespace trimtab::kv_remote::testing {

/// Stands between a client and a server, and does to their bytes what networks do.
class Proxy {
 public:
  explicit Proxy(const std::string& server) : server_(*resolve(server)) {
    listener_ = std::move(*listen_on(*resolve("127.0.0.1:0")));
    port_ = *port_of(listener_.get());
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  /// Of the next connection: flips a bit of its n-th byte in that direction.
  std::atomic<std::int64_t> flip_to_server{-1}, flip_to_client{-1};
  /// Nothing passes, and nobody is told: a cable that was pulled.
  std::atomic<bool> silent{false};
  std::atomic<std::uint64_t> connections{0};

 private:
  struct Line {
    Descriptor client, server;
    std::int64_t flip[2] = {-1, -1};
    std::int64_t passed[2] = {0, 0};
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> wanted{{listener_.get(), POLLIN, 0}};
      for (const auto& line : lines_) {
        wanted.push_back({line->client.get(), POLLIN, 0});
        wanted.push_back({line->server.get(), POLLIN, 0});
      }
      if (silent) wanted.resize(1);
      ::poll(wanted.data(), wanted.size(), 5);
      if (wanted[0].revents != 0) accept_one();
      if (silent) continue;
      for (auto it = lines_.begin(); it != lines_.end();)
        it = pass(**it, 0) && pass(**it, 1) ? it + 1 : lines_.erase(it);
    }
  }

  void accept_one() {
    Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
    auto server = begin_connect(server_);
    if (!client || !server) return;
    pollfd ready{server->get(), POLLOUT, 0};
    ::poll(&ready, 1, 1'000);
    if (socket_error(server->get()) != 0) return;
    auto line = std::make_unique<Line>();
    line->client = std::move(client);
    line->server = std::move(*server);
    line->flip[0] = flip_to_server.exchange(-1);
    line->flip[1] = flip_to_client.exchange(-1);
    lines_.push_back(std::move(line));
    ++connections;
  }

  /// False when this direction has ended.
  static bool pass(Line& line, int direction) {
    const int from = direction == 0 ? line.client.get() : line.server.get();
    const int to = direction == 0 ? line.server.get() : line.client.get();
    char bytes[16'384];
    const ssize_t got = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN;
    const std::int64_t at = line.flip[direction] - line.passed[direction];
    if (line.flip[direction] >= 0 && at >= 0 && at < got) bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    line.passed[direction] += got;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t n = ::send(to, bytes + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
      if (n > 0) sent += n;
      if (n < 0 && errno != EAGAIN) return false;
      if (n < 0) ::usleep(200);
    }
    return true;
  }

  Address server_;
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::vector<std::unique_ptr<Line>> lines_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace trimtab::kv_remote::testing
