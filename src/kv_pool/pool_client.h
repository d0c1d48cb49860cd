#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "kv_pool/fetch_ticket.h"
#include "kv_pool/pool_stats.h"
#include "kv_pool/protocol.h"
#include "model/ids.h"

namespace trimtab::kv_pool {

using model::BlockKey;

struct ClientOptions {
  std::uint64_t block_bytes = 0;  // what the user expects; a pool of other blocks is refused. 0: any
  base::Nanos timeout = base::Nanos{2'000'000'000};  // of one call; afterwards the pool counts as down
};

struct Match {
  std::uint32_t blocks = 0;   // leading keys present
  std::uint64_t epoch = 0;    // of the pool's index; grows with every change, also across restarts
  std::uint64_t request = 0;  // for `answered`; 0: of an answer to it nobody wants to know
};

/// A user's end of the pool; thread-safe, calls take turns. Every failure means "compute it yourself": after
/// a timeout or a lost loader the calls fail at once (kUnavailable) for a while, so that a sick pool costs
/// one timeout and not one per request, then it is dialled again; a restarted loader is found that way.
class PoolClient {
 public:
  /// Waits up to `patience` for the loader to listen.
  static base::Result<PoolClient> connect(const std::string& socket_path, base::Nanos patience,
                                          ClientOptions options = {});
  PoolClient(PoolClient&&) noexcept;
  PoolClient& operator=(PoolClient&&) noexcept;
  ~PoolClient();

  /// Leading keys present, and renews their age. `counted` once per request (the entrypoint's question);
  /// asking again for the same request passes false. `prompt_blocks`: of the prompt, its last one, which is
  /// not full and has no key, among them; 0: as many as keys.
  base::Result<Match> match(std::span<const BlockKey> keys, bool counted = true,
                            std::uint32_t prompt_blocks = 0);
  /// The answer to a counted match is whole: how long it was tells the pool what will be asked for again.
  /// Said without waiting for anybody; false: not said, which costs hits at most.
  bool answered(std::uint64_t request, std::uint32_t tokens);
  /// Copies the block into `destination` (exactly block_bytes) and verifies it. kNotFound: no longer there;
  /// kDataLoss: damaged, and withdrawn; kResourceExhausted: the pool is too busy; kUnavailable.
  base::Status get(BlockKey key, std::span<std::byte> destination);
  /// Asks for these blocks at once, to come in this order as room allows; returns without waiting. Until
  /// `deadline` (an instant of ipc::SteadyClock) blocks may come; higher priorities go first. kUnavailable.
  base::Result<FetchTicket> fetch(std::span<const BlockKey> keys, base::Nanos deadline = base::kForever,
                                  std::int32_t priority = 0);
  /// That this user may hold in the arena at a time, in all its plans.
  std::uint32_t fetch_blocks_most() const;
  /// Stores the block (exactly block_bytes): visible to all at once, durable soon. A block that is present
  /// is skipped. `parent`, the key of the block before, keeps a chain's end evicted before its head.
  base::Status put(BlockKey key, std::span<const std::byte> source, std::optional<BlockKey> parent = {});
  /// Returns when all that was put before is durable; kIo when the pool has no working file tier.
  base::Status flush(base::Nanos timeout = base::Nanos{30'000'000'000});
  base::Result<PoolStats> stats();
  /// How whole the pool's blocks are, its targets, and how far a change of them has come.
  base::Result<PoolReport> report();
  /// Begins a change of the pool's targets. kInvalidArgument: refused, with the target and the cure.
  base::Status manage(const protocol::Manage& change, base::Nanos timeout = base::Nanos{60'000'000'000});

  std::uint64_t block_bytes() const;

 private:
  struct Impl;
  explicit PoolClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trimtab::kv_pool
