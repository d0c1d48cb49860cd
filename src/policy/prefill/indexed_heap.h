#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace trimtab::policy {

/// A 4-ary min-heap on (key, id) whose members are slots of somebody's array and can be removed from the
/// middle. A queue of 100,000 does not fit the near caches, so memory is what it costs: entries are 16 bytes,
/// four children lie together, the tree is half as deep as a binary one, and ids are looked up on equal keys
/// only. O(log4 n); exact, with no dead entries to sweep.
class IndexedHeap {
 public:
  struct Top {
    std::int64_t key;
    std::uint64_t id;  // breaks ties
    std::uint32_t slot;
    bool operator<(const Top& other) const { return key != other.key ? key < other.key : id < other.id; }
  };

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  Top top() const {
    const Entry& first = entries_.front();
    return {first.key, slots_[first.slot].id, first.slot};
  }
  bool contains(std::uint32_t slot) const { return slot < slots_.size() && slots_[slot].position != kAbsent; }

  void push(std::int64_t key, std::uint64_t id, std::uint32_t slot) {
    if (slot >= slots_.size()) slots_.resize(slot + 1);
    TRIMTAB_CHECK(slots_[slot].position == kAbsent);
    slots_[slot].id = id;
    entries_.push_back({key, slot});
    up(entries_.size() - 1);
  }

  void erase(std::uint32_t slot) {
    TRIMTAB_CHECK(contains(slot));
    const std::size_t hole = slots_[slot].position;
    slots_[slot].position = kAbsent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) return;
    place(hole, last);
    up(hole);
    down(slots_[last.slot].position);
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  struct Entry {
    std::int64_t key;
    std::uint32_t slot;
  };
  struct Slot {
    std::uint64_t id = 0;
    std::uint32_t position = kAbsent;
  };

  bool less(const Entry& a, const Entry& b) const {
    if (a.key != b.key) [[likely]]
      return a.key < b.key;
    return slots_[a.slot].id < slots_[b.slot].id;
  }
  void place(std::size_t at, const Entry& entry) {
    entries_[at] = entry;
    slots_[entry.slot].position = static_cast<std::uint32_t>(at);
  }
  void up(std::size_t at) {
    const Entry moving = entries_[at];
    while (at > 0 && less(moving, entries_[(at - 1) / 4])) {
      place(at, entries_[(at - 1) / 4]);
      at = (at - 1) / 4;
    }
    place(at, moving);
  }
  void down(std::size_t at) {
    const Entry moving = entries_[at];
    const std::size_t size = entries_.size();
    for (std::size_t child = 4 * at + 1; child < size; child = 4 * at + 1) {
      std::size_t least = child;
      for (std::size_t other = child + 1; other < child + 4 && other < size; ++other) {
        if (less(entries_[other], entries_[least])) least = other;
      }
      if (!less(entries_[least], moving)) break;
      place(at, entries_[least]);
      at = least;
    }
    place(at, moving);
  }

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
};

}  // namespace trimtab::policy
