#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace trimtab::policy {

/// A 4-ary min-heap on (key, id) whose members are slots of somebody's array and can be removed from the
/// middle. Four children of 24 bytes lie in two cache lines, and the tree is half as deep as a binary one.
/// O(log4 n); exact, with no dead entries to sweep.
class IndexedHeap {
 public:
  struct Entry {
    std::int64_t key;
    std::uint64_t id;  // breaks ties
    std::uint32_t slot;
    bool operator<(const Entry& other) const { return key != other.key ? key < other.key : id < other.id; }
  };

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  const Entry& top() const { return entries_.front(); }
  bool contains(std::uint32_t slot) const { return slot < positions_.size() && positions_[slot] != kAbsent; }

  void push(std::int64_t key, std::uint64_t id, std::uint32_t slot) {
    if (slot >= positions_.size()) positions_.resize(slot + 1, kAbsent);
    TRIMTAB_CHECK(positions_[slot] == kAbsent);
    entries_.push_back({key, id, slot});
    up(entries_.size() - 1);
  }

  void erase(std::uint32_t slot) {
    TRIMTAB_CHECK(contains(slot));
    const std::size_t hole = positions_[slot];
    positions_[slot] = kAbsent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) return;
    entries_[hole] = last;
    positions_[last.slot] = static_cast<std::uint32_t>(hole);
    up(hole);
    down(positions_[last.slot]);
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  void place(std::size_t at, const Entry& entry) {
    entries_[at] = entry;
    positions_[entry.slot] = static_cast<std::uint32_t>(at);
  }
  void up(std::size_t at) {
    const Entry moving = entries_[at];
    while (at > 0 && moving < entries_[(at - 1) / 4]) {
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
        if (entries_[other] < entries_[least]) least = other;
      }
      if (!(entries_[least] < moving)) break;
      place(at, entries_[least]);
      at = least;
    }
    place(at, moving);
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> positions_;  // by slot
};

}  // namespace trimtab::policy
