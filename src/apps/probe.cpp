#include "apps/probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace trimtab::apps {

namespace {

constexpr std::size_t kBodyBytesMax = 16UL << 20;

/// Everything the server sends until it closes; empty when it cannot be reached.
std::string exchange(const std::string& host, std::uint16_t port, const std::string& request,
                     int timeout_seconds) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const std::string target = host == "0.0.0.0" ? "127.0.0.1" : host;
  if (inet_pton(AF_INET, target.c_str(), &address.sin_addr) != 1) return {};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{timeout_seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    std::array<char, 65'536> piece;
    ssize_t n = 0;
    while (answer.size() < kBodyBytesMax && (n = recv(fd, piece.data(), piece.size(), 0)) > 0) {
      answer.append(piece.data(), static_cast<std::size_t>(n));
    }
  }
  close(fd);
  return answer;
}

}  // namespace

HttpAnswer http_get(const std::string& host, std::uint16_t port, const std::string& path,
                    int timeout_seconds) {
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  const std::string answer = exchange(host, port, request, timeout_seconds);
  HttpAnswer out;
  if (answer.size() < 12 || answer.compare(0, 5, "HTTP/") != 0) return out;
  out.status = std::atoi(answer.c_str() + 9);
  const std::size_t body = answer.find("\r\n\r\n");
  if (body != std::string::npos) out.body = answer.substr(body + 4);
  return out;
}

int http_status(const std::string& host, std::uint16_t port, const std::string& path) {
  return http_get(host, port, path, 1).status;
}

}  // namespace trimtab::apps
