#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "kv_state/snapshot_store.h"
#include "kv_state/socket.h"

namespace trimtab::kv_state {

struct ServerOptions {
  Endpoint listen{"0.0.0.0", 0};                // port 0: any free one
  std::uint32_t connections_max = 1024;         // one more is closed at once
  std::uint32_t transfers_max = 16;             // answers being sent; other questions wait their turn
  base::Nanos turn_timeout{1'000'000'000};      // waiting for one's turn; then "busy"
  base::Nanos transfer_timeout{5'000'000'000};  // one answer; a reader that is slower is cut off
  base::Nanos idle_timeout{60'000'000'000};     // between questions, and for the bytes of one
};

struct ServerStats {
  std::uint64_t connections = 0, connections_refused = 0;
  std::uint64_t answered = 0, not_found = 0, other_epoch = 0, busy = 0;
  std::uint64_t broken = 0;     // spoke something else
  std::uint64_t timed_out = 0;  // idle, or too slow
  std::uint64_t bytes_sent = 0;
  std::uint32_t transfers = 0;  // at this moment
};

/// Answers other machines' questions about a store's snapshots, from one thread of its own (epoll). Content
/// is sent from where it lies; it is referenced meanwhile, and for no longer than `transfer_timeout`.
class SnapshotServer {
 public:
  static base::Result<std::unique_ptr<SnapshotServer>> start(SnapshotStore& store, ServerOptions options);
  ~SnapshotServer();  // closes all connections
  SnapshotServer(const SnapshotServer&) = delete;
  SnapshotServer& operator=(const SnapshotServer&) = delete;

  std::uint16_t port() const { return port_; }
  ServerStats stats() const;

 private:
  class Loop;
  SnapshotServer(std::unique_ptr<Loop> loop, std::uint16_t port);
  std::unique_ptr<Loop> loop_;
  std::uint16_t port_;
};

}  // namespace trimtab::kv_state
