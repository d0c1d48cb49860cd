#pragma once

#include <cstdint>
#include <vector>

#include "policy/eviction/policy.h"

namespace trimtab::eviction {

/// A list through the slots: the newest at the front. Everything in constant time, 8 bytes a slot.
class Order {
 public:
  void push(Slot slot) { link(slot, newest_, kNoSlot); }
  /// As the one that is just older than `newer`.
  void push_behind(Slot newer, Slot slot) { link(slot, links_[newer].older, newer); }
  void remove(Slot slot) {
    const Link gone = links_[slot];
    (gone.newer == kNoSlot ? newest_ : links_[gone.newer].older) = gone.older;
    (gone.older == kNoSlot ? oldest_ : links_[gone.older].newer) = gone.newer;
    --count_;
  }
  void touch(Slot slot) {
    if (newest_ == slot) return;
    remove(slot);
    push(slot);
  }
  Slot oldest() const { return oldest_; }
  std::int64_t count() const { return count_; }
  std::size_t memory_bytes() const { return links_.capacity() * sizeof(Link); }

 private:
  struct Link {
    Slot newer = kNoSlot, older = kNoSlot;
  };
  void link(Slot slot, Slot older, Slot newer) {
    if (slot >= links_.size()) links_.resize(std::size_t{slot} + 1);
    links_[slot] = {newer, older};
    (older == kNoSlot ? oldest_ : links_[older].newer) = slot;
    (newer == kNoSlot ? newest_ : links_[newer].older) = slot;
    ++count_;
  }

  std::vector<Link> links_;
  Slot newest_ = kNoSlot, oldest_ = kNoSlot;
  std::int64_t count_ = 0;
};

}  // namespace trimtab::eviction
