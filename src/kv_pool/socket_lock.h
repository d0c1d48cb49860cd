#pragma once

#include <string>

#include "base/error.h"
#include "kv_target/file/descriptor.h"

namespace trimtab::kv_pool {

/// Who holds it is the one process that may listen at a socket's path, and remove it. Without it a second
/// loader of a pool that has no directories would take the path from the first, and lose it again when that
/// one ends. The kernel gives it back with the process, however that ends; one that is ending is waited for.
class SocketLock {
 public:
  /// Errors: kUnavailable, another process holds it; kIo, the file beside the socket cannot be written.
  base::Status take(const std::string& socket_path);

 private:
  kv_target::file::Descriptor file_;
};

}  // namespace trimtab::kv_pool
