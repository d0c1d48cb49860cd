#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace trimtab::kv_target::file {

/// Free room in files of `units_per_file` units each, numbered through. Best fit, the lowest place first, and
/// neighbours in one file grow together when they are given back: shards of few sizes refill each other's
/// holes exactly, and erasing neighbours makes room for something larger. No extent spans two files.
/// Logarithmic in the number of holes.
class ExtentAllocator {
 public:
  explicit ExtentAllocator(std::uint64_t units_per_file) : units_per_file_(units_per_file) {}

  /// The first of `units` units in a row; nothing when no hole is that large.
  std::optional<std::uint64_t> take(std::uint64_t units);
  /// Takes just these; false, and nothing is taken, when not all of them are free.
  bool take_at(std::uint64_t first, std::uint64_t units);
  /// Room that was taken, or is new. Must lie within one file and not be free already.
  void give(std::uint64_t first, std::uint64_t units);

  std::uint64_t free_units() const { return free_; }
  std::uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  std::size_t holes() const { return by_place_.size(); }

 private:
  void add(std::uint64_t first, std::uint64_t units);
  void remove(std::map<std::uint64_t, std::uint64_t>::iterator hole);
  bool same_file(std::uint64_t a, std::uint64_t b) const {
    return a / units_per_file_ == b / units_per_file_;
  }

  std::uint64_t units_per_file_ = 0, free_ = 0;
  std::map<std::uint64_t, std::uint64_t> by_place_;            // first unit to length
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // length, first unit
};

}  // namespace trimtab::kv_target::file
