#include "kv_state/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "ipc/steady_clock.h"

namespace trimtab::kv_state {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

base::Result<Addresses> resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(endpoint.port);
  const int failed = getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} is not an address ({}): give it in numbers", to_string(endpoint),
                                  gai_strerror(failed)),
                      "kv_state");
  }
  return Addresses(found, freeaddrinfo);
}

base::Error unavailable(const std::string& what, const Endpoint& endpoint, int reason) {
  return {base::Code::kUnavailable,
          fmt::format("{} {}: {}", what, to_string(endpoint), std::strerror(reason)), "kv_state"};
}

base::Result<Socket> open_socket(const addrinfo& address, const Endpoint& endpoint) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return tl::unexpected(unavailable("no socket for", endpoint, errno));
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  const bool six = endpoint.host.find(':') != std::string::npos;
  return six ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
             : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

base::Result<Socket> listen_on(const Endpoint& endpoint) {
  const auto address = resolve(endpoint);
  if (!address) return tl::unexpected(address.error());
  auto socket = open_socket(**address, endpoint);
  if (!socket) return socket;
  const int on = 1;
  setsockopt(socket->fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket->fd(), (*address)->ai_addr, (*address)->ai_addrlen) != 0 ||
      ::listen(socket->fd(), 128) != 0)
    return tl::unexpected(unavailable("cannot listen on", endpoint, errno));
  return socket;
}

base::Result<Socket> connect_to(const Endpoint& endpoint, base::Nanos deadline) {
  const auto address = resolve(endpoint);
  if (!address) return tl::unexpected(address.error());
  auto socket = open_socket(**address, endpoint);
  if (!socket) return socket;
  if (::connect(socket->fd(), (*address)->ai_addr, (*address)->ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return tl::unexpected(unavailable("cannot connect to", endpoint, errno));
  if (!wait_until(socket->fd(), POLLOUT, deadline))
    return base::fail(base::Code::kDeadlineExceeded, to_string(endpoint) + " does not answer", "kv_state");
  int reason = 0;
  socklen_t size = sizeof reason;
  getsockopt(socket->fd(), SOL_SOCKET, SO_ERROR, &reason, &size);
  if (reason != 0) return tl::unexpected(unavailable("cannot connect to", endpoint, reason));
  return socket;
}

bool wait_until(int fd, short events, base::Nanos deadline) {
  ipc::SteadyClock clock;
  while (true) {
    const std::int64_t left = std::max<std::int64_t>(0, (deadline - clock.now()).value);
    const auto ms = static_cast<int>(std::min<std::int64_t>((left + 999'999) / 1'000'000, 60'000));
    pollfd item{fd, events, 0};
    const int ready = ::poll(&item, 1, ms);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;  // the call that follows reports errors
    if (clock.now() >= deadline) return false;
  }
}

base::Result<std::uint16_t> port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return base::fail(base::Code::kIo, fmt::format("getsockname: {}", std::strerror(errno)), "kv_state");
  const auto* four = reinterpret_cast<const sockaddr_in*>(&address);
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
  return ntohs(address.ss_family == AF_INET6 ? six->sin6_port : four->sin_port);
}

}  // namespace trimtab::kv_state
