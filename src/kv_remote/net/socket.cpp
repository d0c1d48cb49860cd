#include "kv_remote/net/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>

namespace trimtab::kv_remote {

base::Result<Address> resolve(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("\"{}\" is no address: write host:port, as 127.0.0.1:7701", text),
                      "kv_remote");
  }
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string port = text.substr(colon + 1);
  // The C library takes 99999 for 34463, and so for another service.
  std::uint16_t number = 0;
  const auto [end, wrong] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (wrong != std::errc{} || end != port.data() + port.size())
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("\"{}\": port {} is none: 1 to 65535", text, port), "kv_remote");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("address \"{}\": {}; check the name and the port", text, ::gai_strerror(code)),
        "kv_remote");
  }
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  address.text = text;
  ::freeaddrinfo(found);
  return address;
}

void tune(int fd) {
  const auto set = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

base::Result<Descriptor> begin_connect(const Address& address) {
  Descriptor fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return base::fail(base::Code::kIo, fmt::format("socket: {}", std::strerror(errno)), "kv_remote");
  tune(fd.get());
  const int code = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length);
  if (code != 0 && errno != EINPROGRESS) {
    return base::fail(base::Code::kUnavailable,
                      fmt::format("connect to {}: {}", address.text, std::strerror(errno)), "kv_remote");
  }
  return fd;
}

int socket_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

base::Result<Descriptor> listen_on(const Address& address) {
  Descriptor fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return base::fail(base::Code::kIo, fmt::format("socket: {}", std::strerror(errno)), "kv_remote");
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      ::listen(fd.get(), 128) != 0) {
    return base::fail(base::Code::kIo,
                      fmt::format("listen on {}: {}; choose another --listen address or end who holds it",
                                  address.text, std::strerror(errno)),
                      "kv_remote");
  }
  return fd;
}

base::Result<std::uint16_t> port_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return base::fail(base::Code::kIo, fmt::format("getsockname: {}", std::strerror(errno)), "kv_remote");
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
  return ntohs(storage.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

void abort_connection(Descriptor& socket) {
  if (!socket) return;
  const linger now{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  socket.reset();
}

base::Nanos steady_now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return base::Nanos{time.tv_sec * 1'000'000'000LL + time.tv_nsec};
}

void set_timer(const Descriptor& timer, base::Nanos at) {
  itimerspec spec{};
  if (at != base::kForever) {
    spec.it_value.tv_sec = std::max<std::int64_t>(at.value, 1) / 1'000'000'000;
    spec.it_value.tv_nsec = std::max<std::int64_t>(at.value, 1) % 1'000'000'000;
  }
  ::timerfd_settime(timer.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace trimtab::kv_remote
