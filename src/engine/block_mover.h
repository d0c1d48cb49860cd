#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/job_queues.h"
#include "engine/kv_arena.h"
#include "engine/transport.h"
#include "kv_pool/pool_client.h"
#include "model/ids.h"

namespace trimtab::engine {

/// One piece of block traffic of a request. The arena's blocks that it names must stay referenced until it is
/// done.
struct MoveJob {
  enum class Kind : std::uint8_t { kHandOver, kFetch, kStore } kind = Kind::kFetch;
  model::RequestId id;
  std::uint64_t stay = 0;                 // the owner's: which stay of the request at this rank it belongs to
  std::vector<std::uint32_t> blocks;      // of this rank's arena
  std::vector<model::BlockKey> keys;      // kFetch, kStore: one per block
  std::optional<model::BlockKey> parent;  // kStore: of keys[0]
  model::RankId target;                   // kHandOver
  std::string segment;                    // kHandOver: the decode rank's arena
  std::vector<std::uint32_t> destination;  // kHandOver: one per block
};

struct MoveDone {
  MoveJob job;
  std::uint32_t moved = 0;  // leading blocks that were moved
  bool cancelled = false;
  base::Status status;  // why it stopped short
};

/// Moves blocks in the background, so that no step waits for the pool or for a copy: hand-overs first (a
/// client waits), then fetches, then stores. A fetch asks for all its blocks at once and copies them as they
/// come; those before the first that does not come count. A pool that is away is dialled again once a second;
/// until then fetches find nothing and stores are dropped: every failure means "compute it".
class BlockMover {
 public:
  /// `on_done` is called on the mover's thread. An empty `pool_socket` means there is no pool.
  BlockMover(const KvArena& arena, Transport& transport, std::string pool_socket,
             std::function<void(MoveDone)> on_done);
  ~BlockMover();

  void submit(MoveJob job);
  /// Ends all jobs of the request soon: each still comes back through `on_done`.
  void cancel(model::RequestId id);

 private:
  void run();
  MoveDone perform(MoveJob job);
  void fetch(const MoveJob& job, MoveDone& done);
  bool cancelled();
  base::Status move_one(const MoveJob& job, std::size_t i);
  kv_pool::PoolClient* pool();

  const KvArena& arena_;
  Transport& transport_;
  std::string pool_socket_;
  std::function<void(MoveDone)> on_done_;
  std::optional<kv_pool::PoolClient> pool_;
  base::Nanos next_dial_;

  std::mutex mutex_;
  std::condition_variable changed_;
  JobQueues<MoveJob, 3> queues_;
  std::optional<model::RequestId> current_;
  bool cancel_current_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace trimtab::engine
