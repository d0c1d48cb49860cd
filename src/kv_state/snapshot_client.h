#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "kv/hit_read.h"
#include "kv/snapshot_journal.h"
#include "kv_state/fetch_protocol.h"
#include "kv_state/socket.h"

namespace trimtab::kv_state {

struct ClientOptions {
  std::uint32_t transfers_max = 8;  // fetches under way at once; others wait within their own timeout
  std::uint32_t idle_max = 16;      // connections kept for the next fetch, all machines together
  std::size_t message_bytes_max = 64UL << 20;  // of a list or of changes
};

struct ClientStats {
  std::uint64_t fetched = 0, not_found = 0, failed = 0;
  std::uint64_t corrupt = 0;  // of the failed: truncated, swapped or changed on the way
  std::uint64_t bytes = 0, connections = 0;
};

/// Fetches window snapshots from other machines. Blocking, each call within its timeout; any thread may call.
/// Every error is a miss: the request computes what the state would have saved.
class SnapshotClient {
 public:
  explicit SnapshotClient(ClientOptions options = {}) : options_(options) {}

  /// Fills `into`, whose size is that of the snapshot, with verified content. kNotFound when the machine does
  /// not hold it or is in another epoch; kDeadlineExceeded, kUnavailable, kResourceExhausted (both sides have
  /// limits) or kDataLoss otherwise. After an error the bytes of `into` mean nothing.
  base::Status fetch(const Endpoint& machine, std::uint64_t epoch, const SnapshotName& name,
                     std::span<std::byte> into, base::Nanos timeout);
  /// The machine's changes after `sequence` of `epoch`; kNotFound when only the list helps.
  base::Result<kv::SnapshotDelta> changes(const Endpoint& machine, std::uint64_t epoch,
                                          std::uint64_t sequence, base::Nanos timeout);
  base::Result<kv::SnapshotList> list(const Endpoint& machine, std::uint64_t ticket, base::Nanos timeout);

  ClientStats stats() const;

 private:
  base::Status ask(const Endpoint& machine, FetchRequest request, AnswerReader& reader, base::Nanos deadline);
  base::Status converse(const Socket& socket, const FetchRequest& request, AnswerReader& reader,
                        base::Nanos deadline);
  std::uint64_t next_id();
  base::Status enter(base::Nanos deadline);
  void leave();
  std::optional<Socket> take_idle(const Endpoint& machine);
  void keep_idle(const Endpoint& machine, Socket socket);
  void count(const base::Status& status, std::size_t bytes);

  ClientOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::uint32_t under_way_ = 0;
  std::uint64_t last_id_ = 0;
  std::map<Endpoint, std::vector<Socket>> idle_;
  std::size_t idle_count_ = 0;
  ClientStats stats_;
};

/// What a fetch means to `kv::HitRead`.
kv::ReadResult read_result(const base::Status& status);

}  // namespace trimtab::kv_state
