#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <tuple>

namespace trimtab::text {

namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::size_t merge_short(const MergeTable& merges, std::span<std::int32_t> symbols) {
  std::array<MergeTable::Merge, kLongWord> pairs;  // pairs[i]: symbols i and i + 1
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = merges.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == UINT32_MAX) break;
    symbols[best] = pairs[best].merged;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    if (best + 2 < count) {
      std::copy(pairs.begin() + best + 2, pairs.begin() + count - 1, pairs.begin() + best + 1);
    }
    --count;
    if (best > 0) pairs[best - 1] = merges.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges.find(symbols[best], symbols[best + 1]);
  }
  return count;
}

/// A pair that could merge; stale when its symbols have changed since.
struct Candidate {
  std::uint32_t rank;
  std::uint32_t left, right;  // positions in the word
  std::int32_t left_symbol, right_symbol;
  std::int32_t merged;

  bool operator<(const Candidate& other) const {  // the heap's top is the lowest rank, then the leftmost
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

std::size_t merge_long(const MergeTable& merges, std::span<std::int32_t> symbols) {
  constexpr std::int32_t kGone = -2;
  const auto size = static_cast<std::uint32_t>(symbols.size());
  std::vector<std::uint32_t> next(size);
  std::vector<std::uint32_t> previous(size);
  std::vector<Candidate> found;
  found.reserve(size);
  const auto candidate = [&](std::uint32_t left, std::uint32_t right) {
    const auto merge = merges.find(symbols[left], symbols[right]);
    return Candidate{merge.rank, left, right, symbols[left], symbols[right], merge.merged};
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // of 0: unused
    if (i + 1 < size) {
      const Candidate pair = candidate(i, i + 1);
      if (pair.rank != UINT32_MAX) found.push_back(pair);
    }
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(found));
  while (!heap.empty()) {
    const Candidate pair = heap.top();
    heap.pop();
    // Both symbols unchanged and still neighbours: positions only merge to the left, so equal symbols at both
    // places mean that nothing between them moved.
    if (symbols[pair.left] != pair.left_symbol || symbols[pair.right] != pair.right_symbol ||
        next[pair.left] != pair.right) {
      continue;
    }
    symbols[pair.left] = pair.merged;
    symbols[pair.right] = kGone;
    next[pair.left] = next[pair.right];
    if (next[pair.left] < size) {
      previous[next[pair.left]] = pair.left;
      const Candidate right = candidate(pair.left, next[pair.left]);
      if (right.rank != UINT32_MAX) heap.push(right);
    }
    if (pair.left > 0) {
      const Candidate left = candidate(previous[pair.left], pair.left);
      if (left.rank != UINT32_MAX) heap.push(left);
    }
  }
  const auto end = std::remove(symbols.begin(), symbols.end(), kGone);
  return static_cast<std::size_t>(end - symbols.begin());
}

}  // namespace

MergeTable::MergeTable(std::size_t merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(merges, 8) * 2);
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

std::size_t MergeTable::first_slot(std::uint64_t key) const {
  // Fibonacci hashing; the halves are mixed first since both are small numbers.
  return static_cast<std::size_t>((key ^ (key >> 29)) * 0x9E3779B97F4A7C15ULL >> shift_);
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = first_slot(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
  if (slots_[slot].key == kEmpty) slots_[slot] = {key, merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  // A pair of two missing bytes has the key that marks empty slots; their merge is none either way.
  std::size_t slot = first_slot(key);
  while (slots_[slot].key != key) {
    if (slots_[slot].key == kEmpty) return {};
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slots_[slot].merge;
}

std::size_t merge_word(const MergeTable& merges, std::span<std::int32_t> symbols) {
  if (symbols.size() < 2) return symbols.size();
  return symbols.size() < kLongWord ? merge_short(merges, symbols) : merge_long(merges, symbols);
}

}  // namespace trimtab::text
