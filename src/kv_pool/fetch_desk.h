#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kv_pool/fetch_scheduler.h"
#include "kv_pool/pool_store.h"
#include "kv_pool/progress_ring.h"

namespace trimtab::kv_pool {

/// The loader's fetch plans: gives their blocks slots as the scheduler says, has them loaded, and says how
/// far each is. Without sockets and clocks; one thread.
class FetchDesk {
 public:
  struct Limits {
    FetchScheduler::Limits slots;
    std::uint32_t loads_most = 256;              // blocks being read from the store, of all plans
    std::uint32_t blocks_per_client = 1U << 16;  // in open plans; a plan beyond that is refused
    std::uint32_t layers = 1;                    // of a block
  };
  struct Post {
    ClientId client = 0;
    ProgressEntry entry;
  };

  FetchDesk(PoolStore& store, const Limits& limits)
      : store_(store), limits_(limits), scheduler_(limits.slots) {}

  /// False: the client breaks the protocol (a plan of nothing, or of a number that it uses; a block that
  /// nothing was said about is released).
  bool fetch(ClientId client, const protocol::Fetch& plan, base::Nanos now);
  void cancel(ClientId client, PlanId plan);
  bool release(ClientId client, PlanId plan, std::span<const std::uint32_t> blocks, bool corrupt);
  void leave(ClientId client);

  /// Folds in what the store said, ends what is late, starts what may start.
  void advance(std::span<const PoolStore::Answers::Progress> progress, base::Nanos now);
  std::vector<Post> take_posts() { return std::exchange(posts_, {}); }
  base::Nanos next_wake() const { return scheduler_.next_deadline(); }

  void count(PoolStats& stats) const;
  const FetchScheduler& scheduler() const { return scheduler_; }

 private:
  struct Block {
    BlockKey key;
    enum class State : std::uint8_t { kWaiting, kLoading, kHeld, kOver } state = State::kWaiting;
    std::uint32_t slot = 0;
    PoolStore::LeaseId lease = 0;
  };
  struct Plan {
    std::vector<Block> blocks;
    std::uint32_t left = 0;  // not over
  };
  using Key = std::pair<ClientId, PlanId>;
  struct Place {
    Key plan;
    std::uint32_t block = 0;
  };

  void post(const Key& plan, std::uint32_t block, const ProgressEntry& entry);
  void fold(const PoolStore::Answers::Progress& progress);
  void start(base::Nanos now);
  void end_late(const Key& key);
  void let_go(Block& block, bool corrupt);
  void over(const Key& key, Plan& plan, Block& block);
  void forget(std::map<Key, Plan>::iterator plan);

  PoolStore& store_;
  Limits limits_;
  FetchScheduler scheduler_;
  std::map<Key, Plan> plans_;
  std::map<ClientId, std::uint64_t> blocks_of_;  // in open plans
  std::map<PoolStore::LeaseId, Place> leases_;
  PoolStore::LeaseId last_lease_ = 0;
  std::vector<Post> posts_;
  std::uint64_t opened_ = 0, cancelled_ = 0, late_ = 0, refused_ = 0;
};

}  // namespace trimtab::kv_pool
