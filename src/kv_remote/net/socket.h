#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::kv_remote {

/// A descriptor that is closed once.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { reset(); }
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string text;  // "host:port" as it was given
};

/// "host:port" or "[v6]:port"; names are resolved now, which may wait for a name server.
base::Result<Address> resolve(const std::string& text);

/// Begins to connect; writable when it is done, one way or the other (`socket_error`).
base::Result<Descriptor> begin_connect(const Address& address);
int socket_error(int fd);
base::Result<Descriptor> listen_on(const Address& address);
base::Result<std::uint16_t> port_of(int fd);
/// No delay, and probes that find a peer that is gone without a word within half a minute.
void tune(int fd);
/// Ends a connection at once: what it has not sent yet is never sent.
void abort_connection(Descriptor& socket);

/// CLOCK_MONOTONIC.
base::Nanos steady_now();

}  // namespace trimtab::kv_remote
