#include "kv_pool/socket_lock.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kv_target/file/owner_lock.h"

namespace trimtab::kv_pool {

base::Status SocketLock::take(const std::string& socket_path) {
  const std::string path = socket_path + ".lock";
  auto lock = kv_target::file::take_lock(path);
  if (!lock && lock.error().is_held())
    return base::fail(base::Code::kUnavailable,
                      fmt::format("another kv-loader serves {} ({}): stop it, or name another socket by "
                                  "--socket",
                                  socket_path, lock.error().held),
                      "kv_pool");
  if (!lock)
    return base::fail(
        base::Code::kIo,
        fmt::format("cannot write and lock {}: {}; name a socket in a directory that exists and "
                    "may be written",
                    path, std::strerror(lock.error().reason)),
        "kv_pool");
  file_ = std::move(*lock);
  return {};
}

}  // namespace trimtab::kv_pool
