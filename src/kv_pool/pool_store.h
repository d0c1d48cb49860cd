#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kv/prefix_index.h"
#include "kv_pool/asked_prompts.h"
#include "kv_pool/fetch_scheduler.h"
#include "kv_pool/pool_stats.h"
#include "kv_pool/progress_ring.h"
#include "kv_pool/protocol.h"
#include "kv_pool/store_tier.h"

namespace trimtab::kv_pool {

/// What the pool holds and who uses it: the loader without its sockets. One thread.
///
/// A slot of the memory tier goes free -> writing (granted to a user) or loading (from the store) -> ready. A
/// ready slot is evicted when nobody reads it and its content is durable (or there is no store to wait for):
/// above a store the oldest first, without one as the eviction policy says. A user that goes away loses its
/// pins and grants; a slot granted to it holds nothing that anyone could see.
class PoolStore {
 public:
  /// `memory` is cut into slots of `slot_stride` bytes. `tier` is null for a memory-only pool; that one's
  /// order of eviction is `order`, or LRU.
  PoolStore(std::span<std::byte> memory, std::uint64_t slot_stride, std::uint64_t block_bytes,
            std::uint64_t first_epoch, StoreTier* tier, std::uint64_t tier_blocks = 0,
            std::unique_ptr<eviction::Policy> order = nullptr);

  /// The time of what is asked from now on; never goes back.
  void at(base::Nanos now) { now_ = now; }
  /// Without a tier: blocks stored longer ago leave before all others. Of those that come from now on.
  void expire_after(base::Nanos ttl) { ttl_ = ttl; }

  /// `prompt_blocks`: of the prompt, the last one that is not full among them; 0: as many as keys.
  protocol::Matched match(std::span<const BlockKey> keys, bool counted, std::uint32_t prompt_blocks = 0);
  /// The answer to a counted match is whole. Any number and any time will do.
  void answered(std::uint64_t request, std::uint32_t tokens);

  /// The answer, or nothing when the block is being read from the store: `take_answers` has it later.
  std::optional<protocol::Got> get(ClientId client, BlockKey key);
  /// False when the client holds no such pin (it breaks the protocol).
  bool unpin(ClientId client, std::uint32_t slot, bool corrupt);

  /// One block of a fetch plan, by a number of its owner's (fetch_desk). Its slot is pinned from the first
  /// answer that names it until `end_lease`, whatever becomes of the load.
  using LeaseId = std::uint64_t;
  struct Lease {
    enum class Kind : std::uint8_t { kReady, kLoading, kMissing, kBusy } kind = Kind::kMissing;
    std::uint32_t slot = 0;
    std::uint32_t layers = 0;    // kLoading: of them are there already
    std::uint64_t checksum = 0;  // kReady
  };
  /// kBusy: no slot at present, or `loads_most` blocks are being loaded already. `answers().leases` tells how
  /// a load goes on; a block that is being loaded for others is shared.
  Lease lease(BlockKey key, LeaseId id, std::int32_t priority, std::uint32_t loads_most);
  /// A load that nobody waits for any more is given up.
  void end_lease(std::uint32_t slot, LeaseId id, bool corrupt);

  protocol::PutSlot put(ClientId client, BlockKey key, std::optional<BlockKey> parent);
  /// False when the slot was not granted to the client.
  bool commit(ClientId client, std::uint32_t slot, std::uint64_t checksum);

  /// The answer, or nothing when writes are under way.
  std::optional<protocol::Flushed> flush(ClientId client);

  /// Takes back everything the client holds.
  void leave(ClientId client);

  /// Folds in what the store finished, and gives it more to write.
  void advance();
  struct Answers {
    std::vector<std::pair<ClientId, protocol::Got>> gets;
    std::vector<std::pair<ClientId, protocol::Flushed>> flushes;
    struct Progress {
      LeaseId lease = 0;
      std::uint32_t slot = 0, layers = 0;
      FetchOutcome outcome = FetchOutcome::kLayers;
      std::uint64_t checksum = 0;
    };
    std::vector<Progress> leases;
    std::vector<std::string> disk_errors;
  };
  Answers take_answers();
  /// Nothing waits for the store.
  bool idle() const { return undurable_.empty() && saves_under_way_ == 0; }

  PoolStats stats() const;

 private:
  enum class State : std::uint8_t { kFree, kWriting, kLoading, kReady, kWithdrawn };
  struct Slot {
    State state = State::kFree;
    BlockKey key;
    std::optional<BlockKey> parent;
    std::uint64_t checksum = 0;
    ClientId owner = 0;        // while writing
    std::uint32_t pins = 0;    // readers
    std::uint32_t layers = 0;  // while loading: those that are there
    bool storing = false;      // the store reads it
    bool unsaved = false;      // the store took it not: to be tried again, unless it is evicted before
    bool held = false;         // as `order_` was told
    std::uint64_t commit = 0;  // not 0: not yet durable; the number of its commit
  };
  std::optional<std::uint32_t> take_memory_slot();
  // pool_store_order.cpp: who leaves memory.
  bool evict_one();
  void tell_used(std::span<const BlockKey> keys, const eviction::Access& access);
  void tell_stored(std::uint32_t slot);
  void tell_pins(std::uint32_t slot);
  void tell_gone(std::uint32_t slot);
  std::uint32_t known(std::span<const BlockKey> keys) const;
  std::span<std::byte> bytes(std::uint32_t slot) const;
  void pin(ClientId client, std::uint32_t slot);
  void drop_pin(std::uint32_t slot);
  void free_slot(std::uint32_t slot);
  void withdraw_memory(std::uint32_t slot);
  void settle(Slot& slot);  // it is durable now, or will not be
  void start_saves();
  StoreTier::Origin origin_of(const Slot& slot);
  void saved(std::uint32_t slot, bool done);
  void start_load(std::uint32_t slot, BlockKey key, std::int32_t priority);
  void layers_came(std::uint32_t slot, std::uint32_t layers);
  void loaded(std::uint32_t slot, StoreTier::Event::Kind how);
  void withdraw_corrupt(std::uint32_t slot);
  bool saving() const { return tier_ != nullptr && now_ >= paused_until_; }
  void pause_saving(const std::string& reason);
  /// Not durable, for now.
  void leave_unsaved(Slot& slot);
  /// A few of those that were left so, once the store is asked again.
  void take_up_unsaved();
  void answer_flushes();
  protocol::Flushed flushed(ClientId client);

  std::span<std::byte> memory_;
  std::uint64_t slot_stride_, block_bytes_;
  StoreTier* tier_;
  base::Nanos now_{0}, paused_until_{0};
  bool failing_ = false;  // the last save did not succeed

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  kv::PrefixIndex index_;  // key -> slot that is ready
  AskedPrompts asked_;
  std::unique_ptr<eviction::Policy> order_;  // of a memory-only pool, over its slots
  base::Nanos ttl_ = base::kForever;

  struct Load {
    std::vector<ClientId> gets;   // not pinned yet
    std::vector<LeaseId> leases;  // pinned
  };
  std::map<BlockKey, std::uint32_t> in_progress_;  // writing or loading
  std::map<std::uint32_t, Load> loads_;            // by slot
  std::map<ClientId, std::multiset<std::uint32_t>> pins_;
  std::map<ClientId, std::uint32_t> grants_;
  std::uint64_t leases_ = 0;

  std::deque<std::uint32_t> dirty_;  // ready slots for the store, oldest commit first
  std::set<std::uint64_t> undurable_;
  std::uint64_t last_commit_ = 0;
  std::uint32_t saves_under_way_ = 0;
  bool any_unsaved_ = false;                                 // perhaps
  std::uint32_t unsaved_from_ = 0;                           // slots before it have been looked at
  std::uint64_t losses_ = 0;                                 // commits that did not become durable
  std::map<ClientId, std::uint64_t> losses_told_;            // of those that put something
  std::uint64_t file_slots_ = 0;                             // blocks for which the store has room, about
  std::vector<std::pair<ClientId, std::uint64_t>> flushes_;  // with the last commit they wait for

  std::vector<StoreTier::Event> events_;
  PoolStats counters_;
  Answers answers_;
};

}  // namespace trimtab::kv_pool
