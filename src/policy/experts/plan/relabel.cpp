#include "policy/experts/plan/relabel.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Experts that new rank i and current rank j both hold; a second copy on a rank does not count.
class Overlap {
 public:
  Overlap(const Shape& shape, std::span<const std::int32_t> current, std::span<const std::int32_t> plan)
      : shape_(shape), plan_(plan), holders_(at(shape.experts)) {
    const auto width = static_cast<std::int32_t>(current.size() / at(shape.ranks));
    for (std::int32_t slot = 0; slot < width * shape.ranks; ++slot) {
      auto& ranks = holders_[at(current[at(slot)])];
      if (ranks.empty() || ranks.back() != slot / width) ranks.push_back(slot / width);
    }
  }

  template <class Use>
  void each(std::int32_t rank, Use use) const {
    const auto held = plan_.subspan(at(rank * shape_.slots_per_rank()), at(shape_.slots_per_rank()));
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (std::find(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(i), held[i]) !=
          held.begin() + static_cast<std::ptrdiff_t>(i)) {
        continue;
      }
      for (const std::int32_t holder : holders_[at(held[i])]) use(holder);
    }
  }

  /// [size, size] of the plan's ranks from `row` and the current ranks from `column`.
  std::vector<std::int64_t> block(std::int32_t row, std::int32_t column, std::int32_t size) const {
    std::vector<std::int64_t> values(at(size) * at(size));
    for (std::int32_t i = 0; i < size; ++i) {
      each(row + i, [&](std::int32_t holder) {
        if (holder >= column && holder < column + size) ++values[at(i) * at(size) + at(holder - column)];
      });
    }
    return values;
  }

 private:
  const Shape& shape_;
  std::span<const std::int32_t> plan_;
  std::vector<std::vector<std::int32_t>> holders_;  // current ranks of each expert, ascending
};

std::int64_t value_of(std::span<const std::int64_t> values, std::span<const std::int32_t> chosen) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) sum += values[i * chosen.size() + at(chosen[i])];
  return sum;
}

/// Beyond this the square matrix and its cube of steps cost more than moves save: heaviest overlap first
/// instead.
constexpr std::int32_t kRanksExact = 1024;

std::vector<std::int32_t> match_heaviest_first(const Shape& shape, const Overlap& overlap) {
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>
      pairs;  // -overlap, new rank, current rank
  std::vector<std::int32_t> count(at(shape.ranks));
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    overlap.each(rank, [&](std::int32_t holder) { ++count[at(holder)]; });
    overlap.each(rank, [&](std::int32_t holder) {
      if (count[at(holder)] > 0) pairs.emplace_back(-count[at(holder)], rank, holder);
      count[at(holder)] = 0;
    });
  }
  std::ranges::sort(pairs);
  std::vector<std::int32_t> target(at(shape.ranks), -1), taken(at(shape.ranks));
  std::int64_t kept = 0, kept_in_place = 0;
  for (const auto& [negative, rank, holder] : pairs) {
    if (rank == holder) kept_in_place -= negative;
    if (target[at(rank)] >= 0 || taken[at(holder)] != 0) continue;
    target[at(rank)] = holder, taken[at(holder)] = 1, kept -= negative;
  }
  std::int32_t open = 0;
  for (std::int32_t& chosen : target) {
    if (chosen >= 0) continue;
    while (taken[at(open)] != 0) ++open;
    chosen = open++;
  }
  if (kept_in_place >= kept)
    std::iota(target.begin(), target.end(), 0);  // never worse than the plan's own names
  return target;
}

/// The current rank that each of the plan's ranks becomes.
std::vector<std::int32_t> choose_ranks(const Shape& shape, const Overlap& overlap, bool keep_nodes) {
  const std::int32_t nodes = keep_nodes ? shape.nodes : 1, size = shape.ranks / nodes;
  if (nodes == 1 && size > kRanksExact) return match_heaviest_first(shape, overlap);
  std::vector<std::vector<std::int32_t>> inside(at(nodes) * at(nodes));
  std::vector<std::int64_t> kept(inside.size());
  for (std::int32_t node = 0; node < nodes; ++node) {
    for (std::int32_t old = 0; old < nodes; ++old) {
      const std::size_t pair = at(node) * at(nodes) + at(old);
      const std::vector<std::int64_t> values = overlap.block(node * size, old * size, size);
      inside[pair] = assign_most(values, size);
      kept[pair] = value_of(values, inside[pair]);
    }
  }
  const std::vector<std::int32_t> node_target = assign_most(kept, nodes);
  std::vector<std::int32_t> target(at(shape.ranks));
  for (std::int32_t node = 0; node < nodes; ++node) {
    const std::int32_t old = node_target[at(node)];
    const auto& ranks = inside[at(node) * at(nodes) + at(old)];
    for (std::int32_t i = 0; i < size; ++i) target[at(node * size + i)] = old * size + ranks[at(i)];
  }
  return target;
}

/// One rank's experts in its slots: those that were there stay where they were, the others fill up in order.
void fill_rank(std::span<const std::int32_t> before, std::span<const std::int32_t> experts,
               std::span<std::int32_t> slots) {
  std::ranges::fill(slots, -1);
  std::vector<std::int32_t> others;
  for (const std::int32_t expert : experts) {
    const auto held = std::ranges::find(before, expert);
    const auto slot = static_cast<std::size_t>(held - before.begin());
    if (held != before.end() && slot < slots.size() && slots[slot] < 0) {
      slots[slot] = expert;
    } else {
      others.push_back(expert);
    }
  }
  std::size_t next = 0;
  for (const std::int32_t expert : others) {
    while (slots[next] >= 0) ++next;
    slots[next] = expert;
  }
}

}  // namespace

std::vector<std::int32_t> assign_most(std::span<const std::int64_t> values, std::int32_t size) {
  TRIMTAB_CHECK(size >= 0 && values.size() == at(size) * at(size));
  // Rows and columns count from 1; column 0 stands for the row that looks for a place.
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;
  const std::size_t n = at(size);
  std::vector<std::int64_t> row_price(n + 1), column_price(n + 1), slack(n + 1);
  std::vector<std::size_t> row_of(n + 1), from(n + 1);
  std::vector<char> done(n + 1);
  for (std::size_t row = 1; row <= n; ++row) {
    std::ranges::fill(slack, kFar);
    std::ranges::fill(done, 0);
    row_of[0] = row;
    std::size_t column = 0;
    do {
      done[column] = 1;
      const std::size_t here = row_of[column];
      std::int64_t least = kFar;
      std::size_t next = 0;
      for (std::size_t j = 1; j <= n; ++j) {
        if (done[j] != 0) continue;
        const std::int64_t cost = -values[(here - 1) * n + j - 1] - row_price[here] - column_price[j];
        if (cost < slack[j]) slack[j] = cost, from[j] = column;
        if (slack[j] < least) least = slack[j], next = j;
      }
      for (std::size_t j = 0; j <= n; ++j) {
        if (done[j] != 0) {
          row_price[row_of[j]] += least;
          column_price[j] -= least;
        } else {
          slack[j] -= least;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    for (; column != 0; column = from[column]) row_of[column] = row_of[from[column]];
  }
  std::vector<std::int32_t> column_of(n);
  for (std::size_t j = 1; j <= n; ++j) column_of[row_of[j] - 1] = static_cast<std::int32_t>(j - 1);
  return column_of;
}

SlotMap relabel(const Shape& shape, std::span<const std::int32_t> current, std::span<const std::int32_t> plan,
                bool keep_nodes) {
  TRIMTAB_CHECK(plan.size() == at(shape.slots) && current.size() % at(shape.ranks) == 0);
  SlotMap out(plan.begin(), plan.end());
  if (current.empty()) return out;
  const std::vector<std::int32_t> target = choose_ranks(shape, Overlap(shape, current, plan), keep_nodes);
  const std::size_t old_width = current.size() / at(shape.ranks), width = at(shape.slots_per_rank());
  for (std::size_t rank = 0; rank < target.size(); ++rank) {
    const std::size_t to = at(target[rank]);
    fill_rank(current.subspan(to * old_width, old_width), plan.subspan(rank * width, width),
              std::span(out).subspan(to * width, width));
  }
  return out;
}

}  // namespace trimtab::experts
