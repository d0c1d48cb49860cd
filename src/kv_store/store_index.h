#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv_store/places.h"

namespace trimtab::kv_store {

/// Which shards of which blocks lie where, as the targets' change feeds and the store's own writes tell. A
/// block is present when ten of its shards are at targets believed alive. A target that dies takes its shards
/// out at once, by one flag; when it revives, its feed is followed first.
///
/// The epoch grows with everything that makes less present. An answer at epoch e that turns out wrong is
/// withdrawn, unless the block was written anew since.
///
/// Open addressing over the key's own (cryptographic) bits, 48 bytes a slot, at most half of them used; a
/// batch fetches ahead, so that cache misses overlap. Not thread-safe.
class StoreIndex {
 public:
  explicit StoreIndex(std::uint32_t targets);

  /// `target` has the shard. Where two have it (while it moves), the one at `home` counts; returns the other,
  /// kNowhere when there is none.
  TargetId put(BlockKey key, std::uint32_t shard, TargetId target, TargetId home);
  /// `target` has a shard under this name that is as long as no shard of this pool's blocks: another model's,
  /// whose pool shares the targets or was here before. Such blocks are never present, read, moved or mended
  /// here, and may be erased for their room.
  void put_stranger(BlockKey key, std::uint32_t shard, TargetId target);
  void erased(BlockKey key, std::uint32_t shard, TargetId target);
  void erase(BlockKey key);
  /// Nothing of what was told of this target is sure any more (its feed starts anew).
  void forget(TargetId target);
  /// Whether a target that tells all it holds anew would surprise by holding this shard: the block is present
  /// without it, and the shard was not known before. It may be of an older writing.
  bool surprising(BlockKey key, std::uint32_t shard) const;
  void set_alive(TargetId target, bool alive);
  void add_target() { alive_.push_back(1); }
  bool alive(TargetId target) const { return alive_[target] != 0; }

  /// The shards are there and give no block (two writings mixed, say): not present until one of them is
  /// written again. False when nothing was claimed.
  bool withdraw(BlockKey key);

  bool stranger(BlockKey key) const { return entries_[slot_of(key)].stranger; }
  /// Where each shard is; kNowhere where nobody has it.
  std::optional<Places> find(BlockKey key) const;
  bool present(BlockKey key) const;
  /// Bit i of word i / 64: keys[i] is present. `epoch` is the answer's.
  struct Answer {
    std::vector<std::uint64_t> bits;
    std::uint32_t count = 0;
    std::uint64_t epoch = 0;
    bool operator[](std::size_t i) const { return (bits[i / 64] >> (i % 64) & 1U) != 0; }
  };
  Answer exists(std::span<const BlockKey> keys) const;
  /// How many of the first keys are present: the hit of a chain.
  std::uint32_t leading(std::span<const BlockKey> keys) const;

  std::uint64_t epoch() const { return epoch_; }
  std::size_t blocks() const { return used_ - strangers_; }
  /// Blocks of other models.
  std::size_t strangers() const { return strangers_; }
  /// All of which anything is known, in order, strangers apart. O(n log n): for walks over the store.
  std::vector<BlockKey> keys() const { return keys(false); }
  std::vector<BlockKey> stranger_keys() const { return keys(true); }
  ShardSet usable(const Places& places) const;
  /// How whole blocks are, by where `map` wants their shards. O(blocks).
  struct Tally {
    std::uint64_t blocks = 0;           // of which anything is known
    std::uint64_t whole = 0;            // every shard where it belongs
    std::uint64_t degraded = 0;         // readable, with fewer, or some of them elsewhere
    std::uint64_t unreadable = 0;       // fewer than ten shards: to be computed again
    std::vector<std::uint64_t> shards;  // by target, of those believed alive
  };
  Tally tally(const PlaceMap& map) const;
  /// Adds to `counts`, by target, the shards that are known to be there. O(blocks).
  void count_shards(std::span<std::uint64_t> counts) const;

 private:
  struct Entry {
    BlockKey key;
    Places at{};
    ShardSet known = 0;  // shards that were at a target which was forgotten, until they are told of again
    bool used = false, withdrawn = false, stranger = false;
  };
  std::size_t home_slot(BlockKey key) const { return key.low & (entries_.size() - 1); }
  std::size_t slot_of(BlockKey key) const;
  std::vector<BlockKey> keys(bool strangers) const;
  /// The entry of the key, made when there is none.
  Entry& entry_for(BlockKey key);
  bool counts(const Entry& entry) const;
  void remove(std::size_t slot);
  void grow();

  std::vector<Entry> entries_;
  std::vector<std::uint8_t> alive_;
  std::size_t used_ = 0, strangers_ = 0;
  std::uint64_t epoch_ = 1;
};

}  // namespace trimtab::kv_store
