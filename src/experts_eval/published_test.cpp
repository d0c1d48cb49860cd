#include "experts_eval/published.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "experts_eval/synthetic_loads.h"

namespace trimtab::experts_eval {
namespace {

using experts::LoadWindow;
using experts::Shape;
using experts::SlotMap;

LoadWindow window_of(const std::vector<std::int32_t>& counts, std::int32_t steps, std::int32_t experts) {
  return *LoadWindow::make(counts.data(), steps, experts, experts);
}

/// DeepInfer's rule as it is written: every candidate tried, every step summed.
SlotMap deepinfer_by_definition(const Shape& shape, const LoadWindow& window) {
  const auto n = static_cast<std::size_t>(shape.experts);
  std::vector<std::int32_t> copies(n, 1), physical;
  for (std::int32_t e = 0; e < shape.experts; ++e) physical.push_back(e);
  while (std::ssize(physical) < shape.slots) {
    std::int32_t best = 0;
    float best_score = std::numeric_limits<float>::max();
    for (std::int32_t candidate = 0; candidate < shape.experts; ++candidate) {
      double sum = 0;
      for (std::int32_t t = 0; t < window.steps(); ++t) {
        std::vector<float> load(n);
        for (std::size_t e = 0; e < n; ++e) {
          load[e] = window.of(static_cast<std::int32_t>(e))[static_cast<std::size_t>(t)] +
                    1e-4F * static_cast<float>(e);
          load[e] /= static_cast<float>(copies[e]);
        }
        const auto top = static_cast<std::size_t>(std::ranges::max_element(load) - load.begin());
        // Only the copy of the step's top expert changes the step's peak.
        if (top == static_cast<std::size_t>(candidate)) {
          load[top] = window.of(candidate)[static_cast<std::size_t>(t)] / static_cast<float>(copies[top] + 1);
        }
        sum += std::ranges::max(load);
      }
      const auto score = static_cast<float>(sum);
      if (score < best_score) best = candidate, best_score = score;
    }
    physical.push_back(best);
    ++copies[static_cast<std::size_t>(best)];
  }
  const auto total = [&](std::int32_t e) {
    return static_cast<float>(window.totals()[static_cast<std::size_t>(e)]) /
           static_cast<float>(copies[static_cast<std::size_t>(e)]);
  };
  std::ranges::stable_sort(physical, [&](std::int32_t a, std::int32_t b) { return total(a) > total(b); });
  std::vector<std::vector<std::int32_t>> held(static_cast<std::size_t>(shape.ranks));
  const auto load = [&](const std::vector<std::int32_t>& rank, std::int32_t t) {
    double sum = 0;
    for (const std::int32_t e : rank) {
      sum += window.of(e)[static_cast<std::size_t>(t)] /
             static_cast<double>(copies[static_cast<std::size_t>(e)]);
    }
    return sum;
  };
  for (const std::int32_t e : physical) {
    std::size_t best = held.size();
    double best_sum = 0;
    for (std::size_t r = 0; r < held.size(); ++r) {
      if (std::ssize(held[r]) == shape.slots_per_rank()) continue;
      held[r].push_back(e);
      double sum = 0;
      for (std::int32_t t = 0; t < window.steps(); ++t) {
        double peak = 0;
        for (const auto& rank : held) peak = std::max(peak, load(rank, t));
        sum += peak;
      }
      held[r].pop_back();
      if (best == held.size() || sum < best_sum) best = r, best_sum = sum;
    }
    held[best].push_back(e);
  }
  SlotMap map;
  for (const auto& rank : held) map.insert(map.end(), rank.begin(), rank.end());
  return map;
}

TEST(DeepInferPlan, IsTheRuleAsWritten) {
  // Loads of powers of two times 3,360 (= 2^5 x 105): every quotient by 1 to 7 copies is exact, so is every
  // sum.
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    base::Prng prng(seed);
    const Shape shape{12, 16, 4, 1, 1};
    std::vector<std::int32_t> counts(12 * 6);
    for (std::int32_t& count : counts) count = static_cast<std::int32_t>(prng.below(40)) * 3360;
    const LoadWindow window = window_of(counts, 6, 12);
    EXPECT_EQ(*deepinfer_plan(shape, window), deepinfer_by_definition(shape, window)) << seed;
  }
}

TEST(DeepInferPlan, EqualLargeLoadsAllGoToExpertZero) {
  const Shape shape{16, 24, 4, 1, 1};
  const LoadWindow large = window_of(std::vector<std::int32_t>(32, 1000000), 2, 16);
  EXPECT_EQ(copies_of(shape, *deepinfer_plan(shape, large))[0], 9)
      << "the published defect, kept in the baseline";
  const LoadWindow small = window_of(std::vector<std::int32_t>(32, 100), 2, 16);
  EXPECT_EQ(std::ranges::max(copies_of(shape, *deepinfer_plan(shape, small))), 2);
}

TEST(DeepInferPlan, OneHotExpertTakesEverySpareSlot) {
  const Shape shape{16, 32, 4, 1, 1};
  std::vector<std::int32_t> counts(16, 1);
  counts[3] = 1000000;
  const SlotMap map = *deepinfer_plan(shape, window_of(counts, 1, 16));
  EXPECT_EQ(copies_of(shape, map)[3], 17);
  EXPECT_EQ(duplicate_copies(shape, map), 13);
}

TEST(DeepInferPlan, RefusesAnotherNumberOfExperts) {
  const LoadWindow window = window_of(std::vector<std::int32_t>(12, 1), 1, 12);
  EXPECT_FALSE(deepinfer_plan({16, 24, 4, 1, 1}, window));
}

TEST(BalancedPacking, TakesTheHeaviestToTheLightestPackWithRoom) {
  EXPECT_EQ(balanced_packing(std::vector<float>{9, 8, 1, 2, 7, 3}, 2),
            (std::vector<std::int32_t>{0, 1, 1, 0, 1, 0}));
  EXPECT_EQ(balanced_packing(std::vector<float>{1, 5, 3}, 3), (std::vector<std::int32_t>{0, 1, 2}))
      << "one item a pack stays in order";
}

TEST(DeepSeekPlan, ReplicatesTheMostLoadedCopy) {
  const std::vector<double> totals{90, 40, 30, 10};
  const Shape shape{4, 6, 2, 1, 1};
  // 90 splits to 45 and 45; then 45 is still the most: 30 each.
  EXPECT_EQ(copies_of(shape, *deepseek_global(shape, totals)), (std::vector<std::int32_t>{3, 1, 1, 1}));
  // Falling: 40, then 30 of experts 0, 2, 0, 0 (the copies stand last), then 10; each on the lightest with
  // room.
  EXPECT_EQ(*deepseek_global(shape, totals), (SlotMap{1, 0, 3, 0, 2, 0}));
}

TEST(DeepSeekPlan, AllZeroGivesOneExpertEverySpareSlot) {
  const Shape shape{16, 20, 4, 1, 1};
  EXPECT_EQ(std::ranges::max(copies_of(shape, *deepseek_global(shape, std::vector<double>(16)))), 5);
}

RC_GTEST_PROP(DeepSeekPlan, KeepsGroupsOnTheirNodes, ()) {
  const Shape shape{32, 48, 8, 4, 8};
  const auto counts = *rc::gen::container<std::vector<std::int32_t>>(32, rc::gen::inRange(0, 1000));
  const std::vector<double> totals(counts.begin(), counts.end());
  const SlotMap map = *deepseek_hierarchical(shape, totals);
  RC_ASSERT(check(shape, map, false).has_value());
  std::vector<std::int32_t> node_of_group(8, -1);
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t group = shape.group_of_expert(map[static_cast<std::size_t>(slot)]);
    std::int32_t& node = node_of_group[static_cast<std::size_t>(group)];
    const std::int32_t here = shape.node_of_rank(shape.rank_of_slot(slot));
    RC_ASSERT(node == -1 || node == here);
    node = here;
  }
}

TEST(DeepSeekPlan, FallsBackToGlobalOnlyAtItsEntryPoint) {
  const Shape shape{12, 24, 8, 4, 6};
  const std::vector<double> totals{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_NE(deepseek_hierarchical(shape, totals).error().message.find("4 nodes do not divide 6 groups"),
            std::string::npos);
  EXPECT_EQ(*deepseek_plan(shape, totals), *deepseek_global(shape, totals));
}

}  // namespace
}  // namespace trimtab::experts_eval
