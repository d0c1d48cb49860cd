#include "ipc/channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ipc/steady_clock.h"

namespace trimtab::ipc {

namespace {

constexpr std::size_t kDescriptorsMost = 16;

base::Error system_error(const std::string& what) {
  return {base::Code::kIo, fmt::format("{}: {}", what, std::strerror(errno)), "ipc"};
}

base::Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("socket path {} has {} bytes, the system allows {}: choose a shorter runtime directory",
                    path, path.size(), sizeof address.sun_path - 1),
        "ipc");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

/// True when `fd` is ready; false on the timeout.
bool wait_ready(int fd, short events, base::Nanos timeout) {
  SteadyClock clock;
  const bool bounded = timeout != base::kForever;
  const base::Nanos end = bounded ? clock.now() + timeout : base::kForever;
  while (true) {
    int ms = -1;
    if (bounded) {
      const base::Nanos left = end - clock.now();
      ms = left.value <= 0 ? 0 : static_cast<int>((left.value + 999'999) / 1'000'000);
    }
    pollfd item{fd, events, 0};
    const int ready = ::poll(&item, 1, ms);
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return true;  // the following call reports the error
  }
}

}  // namespace

std::vector<std::byte> pack(const Frame& frame) {
  std::vector<std::byte> bytes(kFrameHeaderBytes + frame.payload.size());
  const auto size = static_cast<std::uint32_t>(frame.payload.size());
  std::memcpy(bytes.data(), &size, 4);
  std::memcpy(bytes.data() + 4, &frame.type, 2);
  if (size > 0) std::memcpy(bytes.data() + kFrameHeaderBytes, frame.payload.data(), size);
  return bytes;
}

void FrameSplitter::append(std::span<const std::byte> bytes) {
  if (read_ > 0 && read_ == buffer_.size()) {
    buffer_.clear();
    read_ = 0;
  } else if (read_ > (1U << 20)) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(read_));
    read_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

base::Result<std::optional<Frame>> FrameSplitter::next() {
  const std::size_t have = buffer_.size() - read_;
  if (have < kFrameHeaderBytes) return std::optional<Frame>{};
  std::uint32_t size = 0;
  Frame frame;
  std::memcpy(&size, buffer_.data() + read_, 4);
  std::memcpy(&frame.type, buffer_.data() + read_ + 4, 2);
  if (size > kFrameBytesMax) {
    return base::fail(base::Code::kInternal,
                      fmt::format("a frame of {} bytes: the peer does not speak this protocol", size), "ipc");
  }
  if (have < kFrameHeaderBytes + size) return std::optional<Frame>{};
  const auto begin = buffer_.begin() + static_cast<std::ptrdiff_t>(read_ + kFrameHeaderBytes);
  frame.payload.assign(begin, begin + size);
  read_ += kFrameHeaderBytes + size;
  return std::optional<Frame>{std::move(frame)};
}

base::Result<Channel> Channel::connect(const std::string& path, base::Nanos patience) {
  auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  SteadyClock clock;
  const base::Nanos end = clock.now() + patience;
  while (true) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return tl::unexpected(system_error("cannot make a socket"));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) return Channel(fd);
    const int reason = errno;
    close(fd);
    if (clock.now() >= end) {
      errno = reason;
      return tl::unexpected(system_error("cannot connect to " + path));
    }
    usleep(5'000);
  }
}

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(splitter_, other.splitter_);
  std::swap(descriptors_, other.descriptors_);
  return *this;
}

Channel::~Channel() {
  for (const int fd : descriptors_) close(fd);
  if (fd_ >= 0) close(fd_);
}

base::Status Channel::send(const Frame& frame) {
  const std::vector<std::byte> bytes = pack(frame);
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        wait_ready(fd_, POLLOUT, base::kForever);
        continue;
      }
      return base::fail(base::Code::kUnavailable, fmt::format("the peer is gone: {}", std::strerror(errno)),
                        "ipc");
    }
    sent += static_cast<std::size_t>(n);
  }
  return {};
}

base::Result<std::optional<Frame>> Channel::receive(base::Nanos timeout) {
  std::array<std::byte, 65'536> piece;
  while (true) {
    auto frame = splitter_.next();
    if (!frame || frame->has_value()) return frame;
    if (!wait_ready(fd_, POLLIN, timeout)) return std::optional<Frame>{};
    const auto n = receive_some(piece);
    if (!n) return tl::unexpected(n.error());
    splitter_.append({piece.data(), *n});
  }
}

base::Result<std::size_t> Channel::receive_some(std::span<std::byte> piece) {
  iovec where{piece.data(), piece.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kDescriptorsMost * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &where;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
  if (n <= 0) return base::fail(base::Code::kUnavailable, "the peer closed the connection", "ipc");
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const std::size_t had = descriptors_.size();
    descriptors_.resize(had + count);
    std::memcpy(descriptors_.data() + had, CMSG_DATA(part), count * sizeof(int));
  }
  return static_cast<std::size_t>(n);
}

bool Channel::peer_gone() const {
  pollfd item{fd_, POLLRDHUP, 0};
  return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool send_with_descriptors(int fd, const Frame& frame, std::span<const int> descriptors) {
  TRIMTAB_CHECK(!descriptors.empty() && descriptors.size() <= kDescriptorsMost);
  std::vector<std::byte> bytes = pack(frame);
  iovec where{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kDescriptorsMost * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &where;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

void Channel::shutdown() {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

base::Result<Listener> Listener::bind(const std::string& path) {
  auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  unlink(path.c_str());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return tl::unexpected(system_error("cannot make a socket"));
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::listen(fd, 128) != 0) {
    auto error = system_error("cannot listen on " + path);
    close(fd);
    return tl::unexpected(error);
  }
  return Listener(fd);
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

base::Result<std::optional<int>> Listener::accept(base::Nanos timeout) {
  while (true) {
    if (!wait_ready(fd_, POLLIN, timeout)) return std::optional<int>{};
    const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) return std::optional<int>{fd};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return tl::unexpected(system_error("cannot accept"));
  }
}

}  // namespace trimtab::ipc
