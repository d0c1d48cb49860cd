#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "supervisor/supervisor.h"

namespace trimtab::supervisor {

namespace {

/// MemAvailable of /proc/meminfo, or -1 when the kernel does not say.
std::int64_t memory_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kilobytes = 0;
  std::string unit;
  while (file >> key >> kilobytes >> unit) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return -1;
}

}  // namespace

base::Status check_port_free(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("gateway.host = \"{}\" is not an IPv4 address; use 127.0.0.1 or 0.0.0.0", host),
        "supervisor");
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool free =
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1) == 0;
  const int reason = errno;
  close(fd);
  if (free) return {};
  return base::fail(base::Code::kUnavailable,
                    fmt::format("cannot listen on {}:{}: {}; stop what uses it or choose another with --port",
                                host, port, std::strerror(reason)),
                    "supervisor");
}

base::Status check_memory(std::int64_t needed_bytes, std::int64_t shared_bytes, const std::string& shm_dir) {
  const std::int64_t available = memory_available_bytes();
  if (available >= 0 && available < needed_bytes) {
    return base::fail(
        base::Code::kResourceExhausted,
        fmt::format(
            "this configuration needs about {} MB of memory, {} MB are available; lower kv_blocks and "
            "pool.memory_bytes, or free some",
            needed_bytes >> 20, available >> 20),
        "supervisor");
  }
  struct statvfs room {};
  if (statvfs(shm_dir.c_str(), &room) == 0) {
    const auto free = static_cast<std::int64_t>(room.f_bavail * room.f_frsize);
    if (free < shared_bytes) {
      return base::fail(
          base::Code::kResourceExhausted,
          fmt::format(
              "this configuration needs {} MB of shared memory, {} has {} MB free; lower kv_blocks and "
              "pool.memory_bytes, or enlarge it",
              shared_bytes >> 20, shm_dir, free >> 20),
          "supervisor");
    }
  }
  return {};
}

}  // namespace trimtab::supervisor
