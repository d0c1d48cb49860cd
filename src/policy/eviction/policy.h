#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"

namespace trimtab::eviction {

using base::Bytes;
using base::Nanos;

/// Where an entry lives in its store: small dense numbers, given by the store and used again.
using Slot = std::uint32_t;
constexpr Slot kNoSlot = UINT32_MAX;

/// One block as it is stored.
struct Block {
  std::uint64_t key = 0;           // of its content and all before it (64 bits of the chain's key suffice)
  Slot parent = kNoSlot;           // the block before it, when this store holds it
  std::uint64_t parent_key = 0;    // of the block before it, held or not; 0: none, or not known
  std::uint32_t position = 0;      // blocks before it in its prompt
  Bytes bytes{1};                  // at most 4 GiB
  Nanos expires = base::kForever;  // from then on it is the first to go
};

/// The request that reads or stores a block. Only `now` is needed; the rest sharpens the forecast. A block
/// that is stored while its prompt is computed, when other requests have come already, is told with the
/// access of its own request, as those before it were; no two requests should then have come at one `now`.
struct Access {
  Nanos now;                        // when the request came
  std::uint32_t prompt_blocks = 0;  // of the whole prompt; 0: not known
  std::uint32_t known_blocks = 0;   // leading ones of them, stored or remembered, when it arrived
};

/// Which blocks leave a full store: one object per store or tier, driven by whoever owns the bytes.
///
/// Every order keeps two promises, which live here. A chain loses its end first: a block never goes while a
/// block behind it is stored, since that one could not be hit any more. And a pinned block (one that is being
/// read or written) never goes. A block that has expired goes before all others, with what hangs behind it.
/// A block that was stored without the one before it hangs behind that one as soon as it is stored.
/// Not thread safe; the same calls give the same victims on every machine. A slot that is not stored, or is
/// stored twice, is a programmer's error.
class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  void stored(Slot slot, const Block& block, const Access& access);
  /// The block was hit. Blocks of one request are told in order, from the prompt's begin.
  void used(Slot slot, const Access& access);
  /// The answer to the request that came at `asked` is whole; `slot`: the last of its blocks that is stored.
  /// How long an answer was tells much of when the conversation goes on. Without effect when the block was
  /// used since `asked`.
  void answered(Slot slot, Nanos asked, std::uint32_t tokens, Nanos now);
  void pin(Slot slot);
  void unpin(Slot slot);
  /// The store dropped it for its own reasons (it was corrupt, its owner withdrew it). It must not be pinned.
  void erased(Slot slot);

  /// Blocks that hold at least `bytes` together, in the order in which they go; they are forgotten. Fewer
  /// when all that is left is pinned or stands before something pinned.
  std::vector<Slot> victims(Bytes bytes, Nanos now);

  /// The block is not stored, but its past is known: it belongs to `Access::known_blocks` too.
  virtual bool remembers(std::uint64_t /*key*/) const { return false; }

  std::uint64_t count() const { return count_; }
  std::uint64_t pinned() const { return pinned_; }
  Bytes bytes() const { return bytes_; }
  /// What the policy itself takes, for the bound that docs/policies/eviction.md states.
  std::size_t memory_bytes() const;

 protected:
  struct Entry {
    Slot parent = kNoSlot, child = kNoSlot;  // `child`: the newest of them
    Slot sibling_newer = kNoSlot, sibling_older = kNoSlot;
    std::uint32_t bytes = 0;
    std::uint32_t pins : 29 = 0;
    bool here : 1 = false;
    bool expires : 1 = false;
  };
  const Entry& entry(Slot slot) const { return entries_[slot]; }
  /// It was stored without the block before it, which has not come since: it cannot be hit.
  bool waits(Slot slot) const { return slot < waits_for_.size() && waits_for_[slot] != 0; }
  /// Nothing hangs behind it and nobody reads it.
  bool droppable(Slot slot) const { return entries_[slot].child == kNoSlot && entries_[slot].pins == 0; }

 private:
  virtual void on_stored(Slot slot, const Block& block, const Access& access) = 0;
  virtual void on_used(Slot slot, const Access& access) = 0;
  virtual void on_answered(Slot /*slot*/, Nanos /*asked*/, std::uint32_t /*tokens*/, Nanos /*now*/) {}
  /// It leaves; `evicted`: as a victim.
  virtual void on_gone(Slot slot, bool evicted) = 0;
  /// The block before it, for which it waited, is stored.
  virtual void on_joined(Slot /*slot*/) {}
  /// It may have become droppable, or ceased to be.
  virtual void on_changed(Slot /*slot*/) {}
  /// Who should go next (it, or the end of what hangs behind it); kNoSlot: nobody can.
  virtual Slot candidate(Nanos now) = 0;
  /// The candidate cannot go now: another one first.
  virtual void postpone(Slot slot) = 0;
  virtual std::size_t order_bytes() const = 0;

  void hang(Slot slot, Slot parent);
  void join_waiting(Slot slot, std::uint64_t key);
  Slot end_of(Slot slot) const;
  void unlink(Slot slot);
  void drop(Slot slot, std::vector<Slot>& out);
  Slot next(Nanos now);

  std::vector<Entry> entries_;
  std::set<std::pair<std::int64_t, Slot>> expiry_;    // only of blocks that expire
  std::vector<std::int64_t> expires_ns_;              // of each slot, once a block that expires was stored
  std::set<std::pair<std::uint64_t, Slot>> waiting_;  // by the key of the block before it
  std::vector<std::uint64_t> waits_for_;              // of each slot; 0: for none
  std::uint64_t count_ = 0, pinned_ = 0;
  Bytes bytes_;
  Slot drained_root_ = kNoSlot, drained_ = kNoSlot;  // where the last chain is being dropped from its end
};

}  // namespace trimtab::eviction
