#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv_target/change_feed.h"

namespace trimtab::kv_target {

/// Values by shard. They lie side by side, and open addressing over hashes and their numbers finds them: 16
/// to 32 bytes a shard on top of name and value. A look-up waits for two lines of memory; whoever has several
/// to do asks for those ahead (`prefetch`). Not thread-safe.
template <class Value>
class ShardTable {
 public:
  struct Entry {
    ShardName name;
    Value value{};
  };

  ShardTable() : cells_(kLeast) {}

  std::size_t size() const { return entries_.size(); }
  /// In no order.
  std::span<const Entry> entries() const { return entries_; }

  void prefetch(std::span<const Request> requests) const {
    for (const Request& request : requests) __builtin_prefetch(&cells_[home(hash_of(request.name))]);
    for (const Request& request : requests) {
      const Cell& cell = cells_[home(hash_of(request.name))];
      if (cell.number != kEmpty) __builtin_prefetch(&entries_[cell.number]);
    }
  }

  /// Null when it is not there. Valid until something is added or erased.
  Value* find(const ShardName& name) {
    const Cell& cell = cells_[cell_of(name)];
    return cell.number == kEmpty ? nullptr : &entries_[cell.number].value;
  }

  /// It is there afterwards: with what it had, or anew.
  Value& add(const ShardName& name) {
    if (2 * (entries_.size() + 1) > cells_.size()) grow();
    Cell& cell = cells_[cell_of(name)];
    if (cell.number == kEmpty) {
      TRIMTAB_CHECK(entries_.size() < kEmpty, "more shards than the table can number");
      cell = {short_hash(hash_of(name)), static_cast<std::uint32_t>(entries_.size())};
      entries_.push_back({name, {}});
    }
    return entries_[cell.number].value;
  }

  bool erase(const ShardName& name) {
    const std::size_t cell = cell_of(name);
    const std::uint32_t number = cells_[cell].number;
    if (number == kEmpty) return false;
    empty(cell);
    if (number + 1 < entries_.size()) {  // the last one takes its place
      const std::size_t last = cell_of(entries_.back().name);
      entries_[number] = std::move(entries_.back());
      cells_[last].number = number;
    }
    entries_.pop_back();
    return true;
  }

 private:
  static constexpr std::size_t kLeast = 64;
  static constexpr std::uint32_t kEmpty = UINT32_MAX;
  struct Cell {
    std::uint32_t hash = 0, number = kEmpty;
  };

  static std::uint64_t hash_of(const ShardName& name) { return ShardHash{}(name)*0x9e3779b97f4a7c15ULL; }
  static std::uint32_t short_hash(std::uint64_t hash) { return static_cast<std::uint32_t>(hash); }
  std::size_t mask() const { return cells_.size() - 1; }
  std::size_t after(std::size_t cell) const { return (cell + 1) & mask(); }
  std::size_t home(std::uint64_t hash) const { return hash >> (64 - std::countr_zero(cells_.size())); }
  /// Where it is, or would be.
  std::size_t cell_of(const ShardName& name) const {
    const std::uint64_t hash = hash_of(name);
    std::size_t at = home(hash);
    while (cells_[at].number != kEmpty &&
           (cells_[at].hash != short_hash(hash) || entries_[cells_[at].number].name != name))
      at = after(at);
    return at;
  }
  /// Those behind the hole that a look-up would not find across it move into it.
  void empty(std::size_t hole) {
    for (std::size_t next = after(hole); cells_[next].number != kEmpty; next = after(next)) {
      const std::size_t wanted = home(hash_of(entries_[cells_[next].number].name));
      const bool reaches = ((next - wanted) & mask()) >= ((next - hole) & mask());
      if (!reaches) continue;
      cells_[hole] = cells_[next];
      hole = next;
    }
    cells_[hole] = Cell{};
  }
  void grow() {
    std::vector<Cell> twice(2 * cells_.size());
    cells_.swap(twice);
    for (std::uint32_t number = 0; number < entries_.size(); ++number) {
      const std::uint64_t hash = hash_of(entries_[number].name);
      std::size_t at = home(hash);
      while (cells_[at].number != kEmpty) at = after(at);
      cells_[at] = {short_hash(hash), number};
    }
  }

  std::vector<Cell> cells_;  // a power of two of them, at most half of them used
  std::vector<Entry> entries_;
};

}  // namespace trimtab::kv_target
