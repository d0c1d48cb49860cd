#include "policy/experts/plan/relabel.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

/// A random legal map: experts in order, then random copies, shuffled until no rank holds one twice.
SlotMap random_map(const Shape& shape, base::Prng& prng) {
  for (;;) {
    SlotMap map(static_cast<std::size_t>(shape.slots));
    for (std::size_t i = 0; i < map.size(); ++i) {
      map[i] = static_cast<std::int32_t>(i < static_cast<std::size_t>(shape.experts)
                                             ? i
                                             : prng.below(static_cast<std::uint64_t>(shape.experts)));
    }
    prng.shuffle(std::span(map));
    if (check(shape, map, true)) return map;
  }
}

std::multiset<std::set<std::int32_t>> ranks_of(const Shape& shape, const SlotMap& map) {
  std::multiset<std::set<std::int32_t>> out;
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    const auto first = map.begin() + static_cast<std::ptrdiff_t>(rank) * shape.slots_per_rank();
    out.emplace(first, first + shape.slots_per_rank());
  }
  return out;
}

/// The least number of received copies over every renaming of ranks (that keeps nodes).
std::int64_t fewest(const Shape& shape, const SlotMap& current, const SlotMap& plan, bool keep_nodes) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(shape.ranks));
  std::iota(order.begin(), order.end(), 0);
  std::int64_t best = shape.slots + 1;
  do {
    bool allowed = true;
    for (std::int32_t a = 0; keep_nodes && a < shape.ranks; ++a) {
      for (std::int32_t b = 0; b < a; ++b) {
        const bool together = shape.node_of_rank(a) == shape.node_of_rank(b);
        allowed = allowed && together == (shape.node_of_rank(order[static_cast<std::size_t>(a)]) ==
                                          shape.node_of_rank(order[static_cast<std::size_t>(b)]));
      }
    }
    if (!allowed) continue;
    SlotMap renamed;
    for (const std::int32_t rank : order) {
      const auto first = plan.begin() + static_cast<std::ptrdiff_t>(rank) * shape.slots_per_rank();
      renamed.insert(renamed.end(), first, first + shape.slots_per_rank());
    }
    best = std::min(best, received_copies(shape, current, renamed));
  } while (std::ranges::next_permutation(order).found);
  return best;
}

RC_GTEST_PROP(Relabel, NeedsAsFewCopiesAsTheBestRenaming, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const Shape shape{8, 18, 6, 3, 4};
  const SlotMap current = random_map(shape, prng), plan = random_map(shape, prng);
  for (const bool keep_nodes : {false, true}) {
    const SlotMap out = relabel(shape, current, plan, keep_nodes);
    RC_ASSERT(ranks_of(shape, out) == ranks_of(shape, plan));
    RC_ASSERT(received_copies(shape, current, out) == fewest(shape, current, plan, keep_nodes));
    RC_ASSERT(received_copies(shape, current, out) <= received_copies(shape, current, plan));
  }
}

RC_GTEST_PROP(Relabel, LeavesWhatStaysInItsSlot, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const Shape shape{20, 32, 8, 1, 1};
  const SlotMap current = random_map(shape, prng), plan = random_map(shape, prng);
  const SlotMap out = relabel(shape, current, plan, false);
  const std::int32_t width = shape.slots_per_rank();
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t expert = current[static_cast<std::size_t>(slot)];
    const auto first = out.begin() + static_cast<std::ptrdiff_t>(slot / width) * width;
    const bool stays = std::find(first, first + width, expert) != first + width;
    RC_ASSERT(!stays || out[static_cast<std::size_t>(slot)] == expert);
  }
}

TEST(Relabel, UndoesARenaming) {
  base::Prng prng(3);
  const Shape shape{256, 320, 64, 8, 8};
  const SlotMap current = random_map(shape, prng);
  SlotMap shuffled;
  std::vector<std::int32_t> order(64);
  std::iota(order.begin(), order.end(), 0);
  prng.shuffle(std::span(order));
  for (const std::int32_t rank : order) {
    for (std::int32_t i = 4; i >= 0; --i) shuffled.push_back(current[static_cast<std::size_t>(rank * 5 + i)]);
  }
  EXPECT_EQ(relabel(shape, current, shuffled, false), current);
  EXPECT_EQ(relabel(shape, {}, shuffled, false), shuffled);
}

TEST(Relabel, TakesACurrentMapOfAnotherWidth) {
  const Shape shape{4, 6, 2, 1, 1};
  const SlotMap current{0, 1, 2, 3}, plan{2, 3, 0, 0, 1, 2};
  const SlotMap out = relabel(shape, current, plan, false);
  EXPECT_EQ(received_copies(shape, current, out), 2);
  EXPECT_EQ(out, (SlotMap{0, 1, 2, 2, 3, 0}));
}

TEST(Relabel, OfThousandsOfRanksIsNeverWorse) {
  base::Prng prng(9);
  const Shape shape{3000, 4800, 1600, 1, 1};
  const SlotMap current = random_map(shape, prng);
  SlotMap rotated(current.begin() + 3 * 7, current.end());
  rotated.insert(rotated.end(), current.begin(), current.begin() + 3 * 7);
  EXPECT_EQ(received_copies(shape, current, relabel(shape, current, rotated, false)), 0);
  EXPECT_EQ(relabel(shape, current, current, false), current);
}

RC_GTEST_PROP(AssignMost, IsTheBestOfAllPermutations, ()) {
  const std::int32_t size = *rc::gen::inRange(0, 7);
  const auto values = *rc::gen::container<std::vector<std::int64_t>>(static_cast<std::size_t>(size * size),
                                                                     rc::gen::inRange<std::int64_t>(-20, 20));
  const auto sum = [&](const std::vector<std::int32_t>& chosen) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      total += values[i * chosen.size() + static_cast<std::size_t>(chosen[i])];
    }
    return total;
  };
  std::vector<std::int32_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::int64_t best = sum(order);
  do best = std::max(best, sum(order));
  while (std::ranges::next_permutation(order).found);
  const std::vector<std::int32_t> chosen = assign_most(values, size);
  RC_ASSERT(sum(chosen) == best);
  std::vector<std::int32_t> sorted = chosen;
  std::ranges::sort(sorted);
  std::iota(order.begin(), order.end(), 0);
  RC_ASSERT(sorted == order);
}

}  // namespace
}  // namespace trimtab::experts
