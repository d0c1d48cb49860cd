#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/prng.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts {
namespace {

LoadWindow random_window(std::int32_t experts, base::Prng& prng) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(12 * experts));
  for (auto& count : counts) count = static_cast<std::int32_t>(prng.below(1 + prng.below(300)));
  return *LoadWindow::make(counts.data(), 12, experts, experts);
}

PlanOptions incremental() {
  PlanOptions options;
  options.start = Start::kIncremental;
  return options;
}

/// Copies that new ranks and survivors must receive, counted from the maps.
std::int64_t received(const Shape& old_shape, const SlotMap& before, const Shape& shape, const SlotMap& after,
                      const std::vector<std::int32_t>& survivors) {
  std::int64_t count = 0;
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::set<std::int32_t> held;
    const std::int32_t old = survivors[static_cast<std::size_t>(rank)];
    for (std::int32_t i = 0; old >= 0 && i < old_shape.slots_per_rank(); ++i) {
      held.insert(before[static_cast<std::size_t>(old * old_shape.slots_per_rank() + i)]);
    }
    for (std::int32_t i = 0; i < shape.slots_per_rank(); ++i) {
      count += held.contains(after[static_cast<std::size_t>(rank * shape.slots_per_rank() + i)]) ? 0 : 1;
    }
  }
  return count;
}

RC_GTEST_PROP(ReplanRanks, NeverLosesAnExpert, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const Shape old_shape{24, 32, 8, 1, 1};
  const auto before = plan_layer(old_shape, random_window(24, prng), {}, {})->map;
  const std::int32_t ranks = *rc::gen::inRange(1, 13);
  const std::int32_t width =
      *rc::gen::inRange((24 + ranks - 1) / ranks, std::min(24, (24 + ranks - 1) / ranks + 3) + 1);
  const Shape shape{24, ranks * width, ranks, 1, 1};
  std::vector<std::int32_t> pool{0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1};
  prng.shuffle(std::span(pool));
  const std::vector<std::int32_t> survivors(pool.begin(), pool.begin() + ranks);
  const LoadWindow window = random_window(24, prng);
  for (const Start start : {Start::kFresh, Start::kIncremental}) {
    PlanOptions options;
    options.start = start;
    const auto plan = replan_ranks(old_shape, before, shape, survivors, window, options);
    RC_ASSERT(plan.has_value());
    RC_ASSERT(check(shape, plan->map, true).has_value());  // every expert has a slot, none twice on a rank
    RC_ASSERT(plan->reason.received == received(old_shape, before, shape, plan->map, survivors));
    RC_ASSERT(plan->map == replan_ranks(old_shape, before, shape, survivors, window, options)->map);
  }
}

TEST(ReplanRanks, ReceivesOnlyWhatWasLostWhenNoMoveIsAllowed) {
  // Rank 3 of 4 dies: experts 6 and 7 were there alone, 0 and 1 not.
  const Shape old_shape{8, 16, 4, 1, 1}, shape{8, 12, 3, 1, 1};
  const SlotMap before{0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 0, 1, 6, 7, 0, 1};
  base::Prng prng(1);
  const LoadWindow window = random_window(8, prng);
  PlanOptions options = incremental();
  options.moves_max = 0;
  const auto plan =
      replan_ranks(old_shape, before, shape, std::vector<std::int32_t>{0, 1, 2}, window, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->reason.received, 2);
  int kept = 0;
  for (std::size_t slot = 0; slot < 12; ++slot) kept += plan->map[slot] == before[slot] ? 1 : 0;
  EXPECT_EQ(kept, 10);
}

TEST(ReplanRanks, SameRanksAreTheIncrementalPlan) {
  const Shape shape{24, 32, 8, 1, 1};
  base::Prng prng(2);
  const auto before = plan_layer(shape, random_window(24, prng), {}, {})->map;
  const LoadWindow window = random_window(24, prng);
  std::vector<std::int32_t> all(8);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(replan_ranks(shape, before, shape, all, window, incremental())->map,
            plan_layer(shape, window, before, incremental())->map);
}

TEST(ReplanRanks, ANewRankIsUsed) {
  const Shape old_shape{24, 32, 8, 1, 1}, shape{24, 36, 9, 1, 1};
  base::Prng prng(3);
  std::vector<std::int32_t> counts;  // hot and cold experts, little noise: what can be balanced
  for (int i = 0; i < 12 * 24; ++i) {
    counts.push_back(100 + 60 * (i % 24) + static_cast<std::int32_t>(prng.below(50)));
  }
  const LoadWindow window = *LoadWindow::make(counts.data(), 12, 24, 24);
  const auto before = plan_layer(old_shape, window, {}, {});
  PlanOptions options = incremental();
  options.move_price = 0;
  const auto plan = replan_ranks(old_shape, before->map, shape,
                                 std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, -1}, window, options);
  EXPECT_GE(plan->reason.received, 4) << "its slots at least";
  const auto fresh = plan_layer(shape, window, {}, {});
  EXPECT_LT(plan->reason.balance, fresh->reason.balance + 0.05);
}

TEST(ReplanRanks, RefusesWhatCannotBe) {
  const Shape old_shape{8, 16, 4, 1, 1}, shape{8, 12, 3, 1, 1};
  const SlotMap before = initial_map(old_shape);
  base::Prng prng(1);
  const LoadWindow window = random_window(8, prng);
  const auto message = [&](const Shape& to, std::vector<std::int32_t> survivors) {
    const auto plan = replan_ranks(old_shape, before, to, survivors, window, incremental());
    return plan ? std::string("accepted") : plan.error().message;
  };
  EXPECT_NE(message(shape, {0, 1}).find("2 survivors for 3 ranks"), std::string::npos);
  EXPECT_NE(message(shape, {0, 1, 4}).find("old rank 4"), std::string::npos);
  EXPECT_NE(message(shape, {0, 1, -2}).find("old rank -2"), std::string::npos);
  EXPECT_NE(message(shape, {0, 1, 1}).find("old rank 1 is both rank 1 and 2"), std::string::npos);
  EXPECT_NE(message({9, 12, 3, 1, 1}, {0, 1, 2}).find("8 experts before and 9 now"), std::string::npos);
  EXPECT_NE(message({8, 6, 3, 1, 1}, {0, 1, 2}).find("6 physical slots cannot hold 8 experts"),
            std::string::npos);
  const SlotMap bad(16, 0);
  EXPECT_FALSE(
      replan_ranks(old_shape, bad, shape, std::vector<std::int32_t>{0, 1, 2}, window, incremental()));
}

}  // namespace
}  // namespace trimtab::experts
