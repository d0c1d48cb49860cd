#include "kv_pool/socket_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trimtab::kv_pool {

base::Status SocketLock::take(const std::string& socket_path) {
  const std::string path = socket_path + ".lock";
  kv_target::file::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file)
    return base::fail(base::Code::kIo,
                      fmt::format("cannot write {}: {}; name a socket in a directory that exists and may be "
                                  "written",
                                  path, std::strerror(errno)),
                      "kv_pool");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return base::fail(
        base::Code::kUnavailable,
        fmt::format("another kv-loader serves {}: stop it, or name another socket by --socket", socket_path),
        "kv_pool");
  file_ = std::move(file);
  return {};
}

}  // namespace trimtab::kv_pool
