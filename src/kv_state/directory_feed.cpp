#include "kv_state/directory_feed.h"

#include <fmt/format.h>

namespace trimtab::kv_state {

namespace {

base::Status foreign(kv::HostId expected, kv::HostId answered) {
  return base::fail(
      base::Code::kInternal,
      fmt::format("machine {} answers where machine {} should be", answered.value, expected.value),
      "kv_state");
}

}  // namespace

base::Status refresh(kv::SnapshotDirectory& directory, kv::HostId machine, const Endpoint& endpoint,
                     SnapshotClient& client, base::Nanos timeout) {
  const auto stands = directory.machine(machine);
  if (stands && stands->epoch != 0 && !directory.needs_list(machine)) {
    const auto changes = client.changes(endpoint, stands->epoch, stands->sequence, timeout);
    if (changes) {
      if (changes->machine != machine) return foreign(machine, changes->machine);
      directory.apply(*changes);
      return {};
    }
    if (changes.error().code != base::Code::kNotFound) return tl::unexpected(changes.error());
  }
  const auto ticket = directory.ask(machine);
  if (!ticket) {
    return base::fail(base::Code::kResourceExhausted,
                      fmt::format("the directory knows {} machines, the most it may", directory.machines()),
                      "kv_state");
  }
  const auto list = client.list(endpoint, *ticket, timeout);
  if (!list) return tl::unexpected(list.error());
  if (list->machine != machine) return foreign(machine, list->machine);
  directory.apply(*list);
  return {};
}

}  // namespace trimtab::kv_state
