#include "policy/experts/plan/single_step.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

double balance(const Shape& shape, const SlotMap& map, const std::vector<double>& totals) {
  const std::vector<std::int32_t> copies = copies_of(shape, map);
  double peak = 0, sum = 0;
  for (std::int32_t rank = 0, slot = 0; rank < shape.ranks; ++rank) {
    double load = 0;
    for (std::int32_t i = 0; i < shape.slots_per_rank(); ++i, ++slot) {
      const auto expert = static_cast<std::size_t>(map[static_cast<std::size_t>(slot)]);
      load += totals[expert] / copies[expert];
    }
    peak = std::max(peak, load), sum += load;
  }
  return sum > 0 ? peak * shape.ranks / sum : 1.0;
}

RC_GTEST_PROP(PlanSingleStep, KeepsTheRulesWhateverTheLoads, ()) {
  Shape shape;
  shape.ranks = *rc::gen::inRange(1, 9);
  shape.experts = *rc::gen::inRange(1, 20);
  const std::int32_t least = (shape.experts + shape.ranks - 1) / shape.ranks;
  const std::int32_t width = *rc::gen::inRange(least, shape.experts + 1);
  shape.slots = width * shape.ranks;
  const auto loads = *rc::gen::container<std::vector<std::int32_t>>(
      static_cast<std::size_t>(shape.experts),
      rc::gen::weightedOneOf<std::int32_t>(
          {{3, rc::gen::inRange(0, 100)}, {1, rc::gen::just(0)}, {1, rc::gen::just(1000000)}}));
  const std::vector<double> totals(loads.begin(), loads.end());
  const SlotMap map = plan_single_step(shape, totals, Effort::kFast, 1);
  RC_ASSERT(check(shape, map, true).has_value());
  RC_ASSERT(map == plan_single_step(shape, totals, Effort::kFast, 1));
}

TEST(PlanSingleStep, SpreadsEqualAndMissingLoads) {
  const Shape shape{16, 24, 4, 1, 1};
  for (const double load : {0.0, 1e6, 1e-6}) {
    const auto copies =
        copies_of(shape, plan_single_step(shape, std::vector<double>(16, load), Effort::kDefault, 1));
    EXPECT_EQ(std::ranges::max(copies), 2) << load;
  }
}

TEST(PlanSingleStep, OneHotExpertIsOnEveryRankOnce) {
  const Shape shape{16, 32, 4, 1, 1};
  std::vector<double> totals(16, 1.0);
  totals[3] = 1e9;
  const SlotMap map = plan_single_step(shape, totals, Effort::kDefault, 1);
  EXPECT_EQ(copies_of(shape, map)[3], 4);
  EXPECT_EQ(duplicate_copies(shape, map), 0);
}

std::uint64_t digest(const SlotMap& map, std::uint64_t hash) {
  for (const std::int32_t expert : map) hash = (hash ^ static_cast<std::uint64_t>(expert)) * 0x100000001b3ULL;
  return hash;
}

TEST(PlanSingleStep, IsTheSameOnEveryMachine) {
  base::Prng prng(20);
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const Shape shape : {Shape{384, 416, 8, 1, 1}, Shape{256, 288, 32, 1, 1}, Shape{384, 448, 64, 1, 1}}) {
    std::vector<double> totals(static_cast<std::size_t>(shape.experts));
    for (double& total : totals) total = static_cast<double>(prng.below(1 + prng.below(100000)));
    for (const Effort effort : {Effort::kFast, Effort::kDefault}) {
      hash = digest(plan_single_step(shape, totals, effort, 1), hash);
    }
  }
  EXPECT_EQ(hash, 11320369902671921729ULL)
      << "a machine, compiler or option changes a decision; or the search was changed on purpose";
}

/// Every map of the shape, ranks alike: the least maximum there is.
double brute_force(const Shape& shape, const std::vector<double>& totals) {
  double best = 1e300;
  SlotMap map;
  const std::function<void()> extend = [&] {
    if (std::ssize(map) == shape.slots) {
      if (check(shape, map, true)) best = std::min(best, balance(shape, map, totals));
      return;
    }
    const bool fresh_rank = std::ssize(map) % shape.slots_per_rank() == 0;
    for (std::int32_t expert = fresh_rank ? 0 : map.back() + 1; expert < shape.experts; ++expert) {
      map.push_back(expert);
      extend();
      map.pop_back();
    }
  };
  extend();
  return best;
}

TEST(PlanSingleStep, IsNearTheOptimumWhereEverythingCanBeTried) {
  base::Prng prng(5);
  double gaps = 0;
  int rounds = 0;
  for (const Shape shape :
       {Shape{4, 6, 2, 1, 1}, Shape{5, 6, 3, 1, 1}, Shape{6, 9, 3, 1, 1}, Shape{7, 9, 3, 1, 1}}) {
    for (int round = 0; round < 20; ++round, ++rounds) {
      std::vector<double> totals(static_cast<std::size_t>(shape.experts));
      for (double& total : totals) total = static_cast<double>(prng.below(1 + prng.below(200)));
      if (std::accumulate(totals.begin(), totals.end(), 0.0) == 0) totals[0] = 1;
      const double ours = balance(shape, plan_single_step(shape, totals, Effort::kDefault, 1), totals);
      const double gap = ours - brute_force(shape, totals);
      EXPECT_GE(gap, -1e-12);
      EXPECT_LE(gap, 0.1) << shape.experts << " experts, round " << round;
      gaps += gap;
    }
  }
  EXPECT_LT(gaps / rounds, 0.01);
}

}  // namespace
}  // namespace trimtab::experts
