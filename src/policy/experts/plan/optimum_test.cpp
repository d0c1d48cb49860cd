// Small cases against the true optimum: every legal map is tried.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "base/prng.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts {
namespace {

LoadWindow skewed(std::uint64_t seed, std::int32_t experts) {
  base::Prng prng(seed);
  std::vector<std::int32_t> loads;
  std::vector<std::uint64_t> rate(static_cast<std::size_t>(experts));
  for (std::uint64_t& r : rate) r = 10 + prng.below(90) * (prng.below(3) == 0 ? 4 : 1);
  for (std::int32_t step = 0; step < 12; ++step) {
    for (const std::uint64_t r : rate) loads.push_back(static_cast<std::int32_t>(r / 2 + prng.below(r)));
  }
  return LoadWindow::make(loads.data(), 12, experts, experts).value();
}

/// The sets of `width` experts that a rank can hold.
std::vector<SlotMap> sets(std::int32_t experts, std::int32_t width) {
  std::vector<SlotMap> out;
  for (std::uint32_t bits = 0; bits < 1U << experts; ++bits) {
    SlotMap set;
    for (std::int32_t expert = 0; expert < experts; ++expert) {
      if ((bits >> expert & 1U) != 0) set.push_back(expert);
    }
    if (static_cast<std::int32_t>(set.size()) == width) out.push_back(set);
  }
  return out;
}

double optimum(const Shape& shape, const LoadWindow& window) {
  const std::vector<SlotMap> choices = sets(shape.experts, shape.slots_per_rank());
  std::vector<std::size_t> at(static_cast<std::size_t>(shape.ranks), 0);
  double best = 1e9;
  for (;;) {
    SlotMap map;
    for (const std::size_t choice : at) map.insert(map.end(), choices[choice].begin(), choices[choice].end());
    if (check(shape, map, true)) best = std::min(best, balance_of(shape, map, window).of_sums);
    // Ranks are alike, so only rising choices are tried.
    std::size_t rank = at.size();
    while (rank > 0 && at[rank - 1] + 1 == choices.size()) --rank;
    if (rank == 0) return best;
    const std::size_t next = at[rank - 1] + 1;
    std::fill(at.begin() + static_cast<std::ptrdiff_t>(rank) - 1, at.end(), next);
  }
}

TEST(PlannerOptimum, TheGapOfSmallCasesIsKnown) {
  struct Gap {
    double mean = 0, worst = 0;
    int exact = 0;
  };
  for (const Effort effort : {Effort::kFast, Effort::kQuality}) {
    Gap gap;
    int cases = 0;
    for (const Shape shape :
         {Shape{4, 6, 2}, Shape{5, 6, 3}, Shape{5, 9, 3}, Shape{6, 9, 3}, Shape{3, 6, 3}}) {
      for (std::uint64_t seed = 0; seed < 12; ++seed, ++cases) {
        const LoadWindow window = skewed(seed, shape.experts);
        PlanOptions options;
        options.effort = effort;
        const double ours = plan_layer(shape, window, {}, options).value().reason.balance;
        const double best = optimum(shape, window);
        ASSERT_GE(ours, best - 1e-6);
        gap.mean += ours / best - 1;
        gap.worst = std::max(gap.worst, ours / best - 1);
        gap.exact += ours < best + 1e-6 ? 1 : 0;
      }
    }
    gap.mean /= cases;
    std::cout << "effort " << static_cast<int>(effort) << ": " << gap.exact << " of " << cases
              << " optimal, mean gap " << gap.mean << ", worst " << gap.worst << "\n";
    EXPECT_LT(gap.mean, 0.02);
    EXPECT_LT(gap.worst, 0.15);
  }
}

}  // namespace
}  // namespace trimtab::experts
