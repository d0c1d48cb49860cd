#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv_pool/pool_report.h"
#include "kv_pool/protocol.h"
#include "kv_store/map_search.h"
#include "policy/eviction/policies.h"
#include "policy/eviction/slots.h"

namespace trimtab::kv_pool {

using model::BlockKey;

/// The pool below memory: blocks striped over targets (kv_store), and which of them leave when there is no
/// more room (policy/eviction). One thread; everything is asked for at once and done by `advance`.
///
/// A save that finds the targets full makes room and tries again, also while as many targets as may be lost
/// are dead or in trouble; one that finds more of them in trouble (a disk that takes nothing any more) fails,
/// and costs no block that is there.
class StoreTier {
 public:
  struct Options {
    kv_store::StoreOptions store;
    std::string eviction = "hit_density";     // a name of policy/eviction
    std::unique_ptr<eviction::Policy> order;  // where there is one, instead of that
    std::uint64_t capacity_blocks = 1'000;    // about: it bounds what the policy remembers
    const policy::CostModel* cost = nullptr;  // of computing a block again, for those that go by it
    base::Nanos ttl = base::kForever;         // blocks stored (here, or found) longer ago leave first
    /// The targets' names, with which the pool's map is kept at them; empty: it is kept nowhere.
    std::vector<std::string> places;
    std::function<base::Result<std::unique_ptr<kv_target::Target>>(const std::string& place)> open_target;
    const base::Clock* clock = nullptr;  // where there are places; it outlives the tier
  };
  struct Event {
    enum class Kind : std::uint8_t {
      kLayers,
      kLoaded,
      kGone,
      kLoadFailed,
      kSaved,
      kSaveFailed
    } kind = Kind::kLoaded;
    std::uint64_t tag = 0;
    std::uint32_t layers = 0;  // kLayers: leading ones that are in place
  };

  /// Errors: no targets; an eviction policy that is none.
  static base::Result<std::unique_ptr<StoreTier>> open(
      std::vector<std::unique_ptr<kv_target::Target>> targets, Options options, base::Nanos now);

  bool present(BlockKey key) const { return store_->index().present(key); }
  /// Leading ones of a prompt's blocks that are there, or were and are remembered.
  std::uint32_t known(std::span<const BlockKey> keys) const;
  /// A request uses these (leading blocks of its prompt, in order).
  void touch(std::span<const BlockKey> keys, const eviction::Access& access);
  /// The answer to the request that came at `asked` and has these blocks is whole.
  void answered(std::span<const BlockKey> keys, base::Nanos asked, std::uint32_t tokens, base::Nanos now);
  /// `to` is the tier's until the tag's last event. Higher priorities first, then earlier deadlines.
  void load(BlockKey key, std::span<std::byte> to, std::uint64_t tag, base::Nanos deadline,
            std::int32_t priority, base::Nanos now);
  /// No further event; `to` is not touched any more.
  void cancel_load(std::uint64_t tag, base::Nanos now);
  /// Whose a block is that is saved, and where it stands in its prompt.
  struct Origin {
    std::optional<BlockKey> parent;
    std::optional<eviction::Access> access;  // nothing: not known
    std::uint32_t position = 0;

    /// What eviction is told of such a block of `bytes` that is stored at `now`: all but the slot of the one
    /// before it.
    eviction::Block block(BlockKey key, std::uint64_t bytes, base::Nanos ttl, base::Nanos now) const;
  };
  void save(BlockKey key, std::span<const std::byte> block, const Origin& origin, std::uint64_t tag,
            base::Nanos now);

  void advance(base::Nanos now, std::vector<Event>& events);
  std::vector<int> wake_fds() { return store_->wake_fds(); }
  base::Nanos next_wake();

  std::uint64_t epoch() const { return store_->index().epoch(); }
  std::size_t blocks() const { return store_->index().blocks(); }
  std::uint64_t evictions() const { return evictions_; }
  kv_store::StripedStore& store() { return *store_; }
  /// What an operator should know of how the pool was opened.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Why another process's newer map is not gone by; empty while all is well.
  const std::string& map_trouble() const { return map_trouble_; }
  /// O(blocks).
  PoolReport report(base::Nanos now);

  // Changes of the pool, asked for by an operator. A target is named by its place or its number. Errors say
  // which target and what to do.
  base::Status manage(const protocol::Manage& asked, base::Nanos now);
  base::Status give_up(const std::string& target, base::Nanos now);
  base::Status drain(const std::string& target, base::Nanos now);
  base::Status expand(std::span<const std::string> places, std::span<const std::uint32_t> racks,
                      base::Nanos now);
  base::Status replace(const std::string& target, const std::string& place, base::Nanos now);
  /// Why the targets take nothing at present; empty while they do.
  std::string trouble();

 private:
  struct Load {
    BlockKey key;
    std::uint64_t tag = 0;
  };
  struct Save {
    BlockKey key;
    std::span<const std::byte> block;
    Origin origin;
    std::uint64_t tag = 0;
    base::Nanos retry_at{0};      // waits for room until then; 0: under way
    base::Nanos made_room_at{0};  // the last time it had a block dropped
    std::uint32_t tries = 0;
  };

  StoreTier(std::unique_ptr<kv_store::StripedStore> store, std::unique_ptr<eviction::Policy> policy,
            std::uint64_t block_bytes)
      : store_(std::move(store)), policy_(std::move(policy)), block_bytes_(block_bytes) {}
  eviction::Slot slot_of(BlockKey key) const;
  void add(BlockKey key, const Origin& origin, base::Nanos now);
  void remove(BlockKey key);
  /// Blocks that are there and that the policy does not know: found at start, or written by other machines.
  void adopt(base::Nanos now);
  void make_room(base::Nanos now);
  /// Whether there is no room because of targets' trouble, which dropping blocks does not end.
  bool full_by_trouble();
  void saved(const kv_store::StoreEvent& event, base::Nanos now, std::vector<Event>& events);
  void loaded(const kv_store::StoreEvent& event, std::vector<Event>& events);
  void retry_saves(base::Nanos now, std::vector<Event>& events);
  // tier_changes.cpp
  void follow_map(base::Nanos now);
  base::Status adopt_newer(base::Nanos now);
  base::Status may_lose(kv_store::TargetId lost) const;
  /// As this process has it in its list; the map may know it by another name.
  const std::string& name_of(kv_store::TargetId id) const;
  base::Result<kv_store::TargetId> find_target(const std::string& target) const;
  base::Result<std::unique_ptr<kv_target::Target>> open_blank(const std::string& place);

  std::function<base::Result<std::unique_ptr<kv_target::Target>>(const std::string& place)> open_target_;
  const base::Clock* clock_ = nullptr;
  kv_store::MapRecord opened_by_;
  std::vector<std::string> names_;  // by number, of those that were there at the start or replaced since
  std::vector<std::string> notes_;
  std::string map_trouble_;
  base::Nanos adopt_at_{0}, made_map_room_at_{0}, met_strangers_at_{0};
  std::unique_ptr<kv_store::StripedStore> store_;
  std::unique_ptr<eviction::Policy> policy_;
  std::uint64_t block_bytes_;
  base::Nanos ttl_ = base::kForever;
  std::unordered_map<BlockKey, eviction::Slot> slot_of_;  // looked up, never iterated
  eviction::Slots<BlockKey> slots_;
  std::map<kv_store::StripedStore::Handle, Load> loads_;
  std::unordered_map<std::uint64_t, kv_store::StripedStore::Handle> load_of_;  // by tag
  std::map<kv_store::StripedStore::Handle, Save> saves_;
  std::vector<kv_store::StoreEvent> events_;
  std::uint64_t evictions_ = 0;
};

}  // namespace trimtab::kv_pool
