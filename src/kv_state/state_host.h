#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "kv/snapshot_name.h"

namespace trimtab::kv_state {

struct StateHostOptions {
  std::uint32_t machine = 0;
  base::Bytes memory_bytes{256LL << 20};
  std::string epoch_path;      // ipc::next_life: a clock may jump
  std::string keep_socket;     // where this machine's engines put snapshots
  std::string control_socket;  // of the entrypoint, which is told where to ask
  std::string host = "127.0.0.1";
};

/// What the rows of the reference engine's snapshots are: part of every name (kv::layout_key).
inline constexpr const char* kReferenceElement = "f16 key 64, value 64";

/// Where the engines of machine `number` put snapshots.
std::string keep_socket_path(const std::string& runtime_dir, std::uint32_t machine);

/// Keeps one machine's snapshots until `stop` becomes true: takes them from its engines over a Unix socket,
/// answers fetches and the directory's questions over TCP, and holds a connection to the entrypoint, whose
/// end is the machine's death. An entrypoint that is away is dialled again; engines come and go. kIo when the
/// epoch cannot be written or a socket not be bound.
base::Status run_state_host(const StateHostOptions& options, const std::atomic<bool>& stop);

/// An engine's side: what it sends to its machine's store to have one snapshot kept. There is no answer: one
/// that is not kept is a miss.
std::vector<std::byte> keep_message(const kv::SnapshotName& name, std::span<const std::byte> content);

}  // namespace trimtab::kv_state
