#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "policy/eviction/policy.h"

namespace trimtab::eviction {

/// Slots in cells of equal worth, and the cell of least worth. A slot enters and leaves in constant time; a
/// cell that becomes empty or ceases to be costs the logarithm of how many are not.
class Cells {
 public:
  using Cell = std::uint32_t;
  explicit Cells(Cell cells) : lists_(cells) {}

  /// `at_end`: as the next of its cell to go.
  void push(Slot slot, Cell cell, double worth, bool at_end);
  void remove(Slot slot);
  bool holds(Slot slot) const { return slot < links_.size() && links_[slot].cell != kNone; }
  Cell cell_of(Slot slot) const { return links_[slot].cell; }
  /// Of the cell of least worth (ties: the lower number) the slot that is next to go.
  Slot least() const { return by_worth_.empty() ? kNoSlot : lists_[by_worth_.begin()->second].oldest; }
  Slot oldest(Cell cell) const { return lists_[cell].oldest; }
  /// All worths have changed.
  void reorder(const std::function<double(Cell)>& worth);
  /// Cells that hold something, by worth.
  void filled(std::vector<Cell>& out) const {
    out.clear();
    for (const auto& each : by_worth_) out.push_back(each.second);
  }
  std::size_t memory_bytes() const {
    return lists_.size() * sizeof(List) + links_.capacity() * sizeof(Link) + by_worth_.size() * 48;
  }

 private:
  static constexpr Cell kNone = UINT32_MAX;
  struct List {
    Slot newest = kNoSlot, oldest = kNoSlot;
    double worth = 0;
  };
  struct Link {
    Slot newer = kNoSlot, older = kNoSlot;
    Cell cell = kNone;
  };
  std::vector<List> lists_;
  std::vector<Link> links_;
  std::set<std::pair<double, Cell>> by_worth_;
};

}  // namespace trimtab::eviction
