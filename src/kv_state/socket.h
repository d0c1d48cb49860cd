#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::kv_state {

/// Where a machine answers. `host` is an address in numbers: names are not resolved, since that may block.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  auto operator<=>(const Endpoint&) const = default;
};
std::string to_string(const Endpoint& endpoint);

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Non-blocking TCP sockets without Nagle's delay. kInvalidArgument when the host is no address.
base::Result<Socket> listen_on(const Endpoint& endpoint);
/// Connected, by `deadline` (of ipc::SteadyClock): kUnavailable or kDeadlineExceeded otherwise.
base::Result<Socket> connect_to(const Endpoint& endpoint, base::Nanos deadline);
/// True when `fd` is ready for `events` (of poll), or has failed; false at the deadline.
bool wait_until(int fd, short events, base::Nanos deadline);
base::Result<std::uint16_t> port_of(const Socket& socket);

}  // namespace trimtab::kv_state
