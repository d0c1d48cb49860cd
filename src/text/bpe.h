#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab::text {

/// The merges of a byte-pair encoding: (left, right) -> merged token, in order of rank. An open-addressing
/// table, at most half full, since a word of n symbols asks about 3n times.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = UINT32_MAX;  // lower merges first; UINT32_MAX: the pair does not merge
    std::int32_t merged = -1;
  };

  explicit MergeTable(std::size_t merges);
  /// The first rank of a pair counts.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  std::size_t first_slot(std::uint64_t key) const;

  std::vector<Slot> slots_;
  int shift_;
};

/// Merges the symbols of one word in place, always the pair of lowest rank, of equal ones the leftmost;
/// returns how many are left. Symbols of -1 stand for bytes without a token: they merge with nothing.
///
/// Short words are scanned for the lowest rank before every merge (quadratic, but the words fit two cache
/// lines); from `kLongWord` symbols on a heap of candidates makes it O(n log n), so that no input is slow.
std::size_t merge_word(const MergeTable& merges, std::span<std::int32_t> symbols);

inline constexpr std::size_t kLongWord = 48;

}  // namespace trimtab::text
