#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/ids.h"

namespace trimtab::kv {

using model::BlockKey;

/// Which block keys are present, in least-recently-used order, bounded.
///
/// Because a key names the whole prefix up to its block, the longest cached prefix of a prompt is the number
/// of leading keys present: no tree is needed. A block without its predecessors is useless, so the order
/// keeps parents younger than children: `insert` places a block just behind its parent, `touch` renews a
/// chain from its end to its head, and eviction takes a chain from its end.
///
/// The epoch counts changes. An answer given at epoch e may be contradicted later (`withdraw(key, e)`): only
/// an entry that already existed at e goes, never one that was stored anew meanwhile.
///
/// Cost: open addressing over the key's own (cryptographic) bits, about one cache miss per key.
class PrefixIndex {
 public:
  struct Entry {
    BlockKey key;
    std::uint32_t value = 0;  // the owner's: a slot number
    std::uint64_t epoch = 0;  // of the insertion
  };

  /// `first_epoch` lets a restarted owner go on with larger epochs than before.
  explicit PrefixIndex(std::uint32_t capacity, std::uint64_t first_epoch = 0);

  std::optional<Entry> find(BlockKey key) const;
  /// How many leading keys are present.
  std::uint32_t longest_prefix(std::span<const BlockKey> keys) const;

  /// False when the key is present already or the index is full (evict first). Youngest, or just behind
  /// `parent` when that is present.
  bool insert(BlockKey key, std::uint32_t value, std::optional<BlockKey> parent = {});
  bool erase(BlockKey key);
  /// Erases the entry if it existed at `seen_epoch`.
  bool withdraw(BlockKey key, std::uint64_t seen_epoch);
  /// Makes the present ones of `keys` the youngest, the first of them youngest of all.
  void touch(std::span<const BlockKey> keys);

  /// The oldest entry for which `may_go(entry)` holds.
  template <class Predicate>
  std::optional<Entry> oldest(Predicate&& may_go) const {
    for (std::uint32_t node = nodes_[kSentinel].newer; node != kSentinel; node = nodes_[node].newer)
      if (may_go(nodes_[node].entry)) return nodes_[node].entry;
    return {};
  }
  /// All entries, oldest first.
  std::vector<Entry> entries() const;

  std::uint64_t epoch() const { return epoch_; }
  std::uint32_t size() const { return size_; }
  std::uint32_t capacity() const { return capacity_; }
  bool full() const { return size_ == capacity_; }

 private:
  static constexpr std::uint32_t kSentinel = 0;  // node 0 closes the ring of nodes
  struct Node {
    Entry entry;
    std::uint32_t older = 0, newer = 0;
  };

  std::uint32_t home(BlockKey key) const { return static_cast<std::uint32_t>(key.low) & mask_; }
  std::uint32_t cell_of(BlockKey key) const;  // holding the key, or the empty one where it would go
  std::uint32_t node_of(BlockKey key) const { return cells_[cell_of(key)]; }
  void empty_cell(std::uint32_t cell);
  void unlink(std::uint32_t node);
  void link_older_than(std::uint32_t node, std::uint32_t younger);

  std::uint32_t capacity_;
  std::uint32_t size_ = 0;
  std::uint32_t mask_;
  std::uint64_t epoch_;
  std::vector<std::uint32_t> cells_;  // node numbers; 0 = empty
  std::vector<Node> nodes_;           // sentinel, then as many as are or were in use
  std::vector<std::uint32_t> free_;   // node numbers to use again
};

}  // namespace trimtab::kv
