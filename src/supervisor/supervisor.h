#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "supervisor/watch.h"

namespace trimtab::supervisor {

struct SupervisorOptions {
  std::vector<ProcessSpec> plan;
  WatchConfig watch;
  std::string log_dir;   // one file a process, `<name>.log`; the last run's becomes `<name>.log.1`
  std::string ends_dir;  // obs::write_process_ends tells there who ended untold; empty: nowhere
};

/// Starts the plan, restarts what dies, and returns once SIGINT or SIGTERM came and everything has ended (or
/// was killed). The children die with this process, even when it is killed. `on_change(name, what)` hears
/// starts, exits and restarts; of who ended untold, with what its log says of it.
base::Status supervise(
    const SupervisorOptions& options,
    const std::function<void(const std::string& name, const std::string& what)>& on_change);

/// kUnavailable with the reason in one line when `host:port` is taken or not ours to bind.
base::Status check_port_free(const std::string& host, std::uint16_t port);

/// kResourceExhausted when less than `needed` bytes of memory, or of the shared-memory file system at
/// `shm_dir`, are free.
base::Status check_memory(std::int64_t needed_bytes, std::int64_t shared_bytes, const std::string& shm_dir);

}  // namespace trimtab::supervisor
