#include "net/blocking_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace trimtab::net {
namespace {

constexpr std::size_t kBodyBytesMax = 1ULL << 30;

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

base::Result<std::size_t> parse_size(std::string_view text, int base) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end == text.data() || value > kBodyBytesMax)
    return base::fail(base::Code::kDataLoss, fmt::format("bad length \"{}\" in an answer", text), "net");
  return value;
}

}  // namespace

base::Result<BlockingClient> BlockingClient::connect(const std::string& host, std::uint16_t port,
                                                     std::chrono::milliseconds timeout) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const std::string numeric = host == "localhost" || host == "0.0.0.0" ? "127.0.0.1" : host;
  if (::inet_pton(AF_INET, numeric.c_str(), &address.sin_addr) != 1)
    return base::fail(base::Code::kInvalidArgument, fmt::format("\"{}\" is not an IPv4 address", host),
                      "net");
  BlockingClient client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval limit{};
  limit.tv_sec = timeout.count() / 1000;
  limit.tv_usec = (timeout.count() % 1000) * 1000;
  const int on = 1;
  ::setsockopt(client.descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(client.descriptor_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  ::setsockopt(client.descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(client.descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return base::fail(base::Code::kUnavailable,
                      fmt::format("cannot connect to {}:{}: {}", host, port, std::strerror(errno)), "net");
  return client;
}

BlockingClient::BlockingClient(BlockingClient&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), buffer_(std::move(other.buffer_)) {}
BlockingClient& BlockingClient::operator=(BlockingClient&& other) noexcept {
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  buffer_ = std::move(other.buffer_);
  return *this;
}
BlockingClient::~BlockingClient() { close(); }

base::Status BlockingClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0)
      return base::fail(errno == EAGAIN ? base::Code::kDeadlineExceeded : base::Code::kUnavailable,
                        fmt::format("sending failed: {}", std::strerror(errno)), "net");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return {};
}

base::Status BlockingClient::fill() {
  std::array<char, 64 << 10> piece;
  while (true) {
    const ssize_t got = ::recv(descriptor_, piece.data(), piece.size(), 0);
    if (got > 0) {
      buffer_.append(piece.data(), static_cast<std::size_t>(got));
      return {};
    }
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return base::fail(base::Code::kDataLoss, "the server closed the connection", "net");
    return base::fail(errno == EAGAIN ? base::Code::kDeadlineExceeded : base::Code::kUnavailable,
                      fmt::format("receiving failed: {}", std::strerror(errno)), "net");
  }
}

base::Result<std::string> BlockingClient::read_some() {
  if (buffer_.empty()) {
    const auto filled = fill();
    if (!filled && filled.error().code != base::Code::kDataLoss) return tl::unexpected(filled.error());
  }
  return std::exchange(buffer_, {});
}

base::Result<std::string> BlockingClient::read_line() {
  std::size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos) TRIMTAB_TRY(fill());
  std::string line(trim(std::string_view(buffer_).substr(0, end)));
  buffer_.erase(0, end + 1);
  return line;
}

base::Result<std::string> BlockingClient::read_exactly(std::size_t bytes) {
  while (buffer_.size() < bytes) TRIMTAB_TRY(fill());
  std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return taken;
}

base::Result<Response> BlockingClient::read_response(bool head_only) {
  Response response;
  const auto status_line = read_line();
  if (!status_line) return tl::unexpected(status_line.error());
  const std::size_t space = status_line->find(' ');
  const auto status =
      parse_size(std::string_view(*status_line).substr(space == std::string::npos ? 0 : space + 1), 10);
  if (!status) return tl::unexpected(status.error());
  response.status = static_cast<int>(*status);
  while (true) {
    auto line = read_line();
    if (!line) return tl::unexpected(line.error());
    if (line->empty()) break;
    const std::size_t colon = line->find(':');
    if (colon == std::string::npos) return base::fail(base::Code::kDataLoss, "bad header: " + *line, "net");
    response.headers.push_back(
        {line->substr(0, colon), std::string(trim(std::string_view(*line).substr(colon + 1)))});
  }
  if (response.status == 100) return read_response(head_only);
  if (head_only || response.status == 204) return response;
  if (const auto length = find_header(response.headers, "Content-Length"); !length.empty()) {
    const auto size = parse_size(length, 10);
    if (!size) return tl::unexpected(size.error());
    auto body = read_exactly(*size);
    if (!body) return tl::unexpected(body.error());
    response.body = std::move(*body);
    return response;
  }
  if (find_header(response.headers, "Transfer-Encoding").empty()) {
    while (fill()) {
    }
    response.body = std::exchange(buffer_, {});
    return response;
  }
  while (true) {
    const auto line = read_line();
    if (!line) return tl::unexpected(line.error());
    const auto size = parse_size(*line, 16);
    if (!size) return tl::unexpected(size.error());
    const auto chunk = read_exactly(*size + 2);
    if (!chunk) return tl::unexpected(chunk.error());
    if (*size == 0) return response;
    response.body.append(*chunk, 0, *size);
  }
}

base::Result<Response> BlockingClient::request(std::string_view method, std::string_view target,
                                               std::string_view body, const Headers& headers) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n", method, target);
  for (const Header& header : headers) out += fmt::format("{}: {}\r\n", header.name, header.value);
  if (!body.empty() || method == "POST") out += fmt::format("Content-Length: {}\r\n", body.size());
  out += "\r\n";
  out += body;
  TRIMTAB_TRY(send(out));
  return read_response(method == "HEAD");
}

void BlockingClient::shutdown_send() { ::shutdown(descriptor_, SHUT_WR); }

void BlockingClient::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void BlockingClient::reset() {
  const linger hard{1, 0};
  ::setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

void BlockingClient::receive_buffer_bytes(int bytes) {
  ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

}  // namespace trimtab::net
