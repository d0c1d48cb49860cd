#include "policy/experts/moves/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

using testing::HasSubstr;

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

MoveBudget budget_of(std::int64_t stall_ns) {
  return {.bytes_per_copy = 18'800'000,
          .link_bytes_per_s = 50'000'000'000,
          .node_link_bytes_per_s = 0,
          .local_bytes_per_s = 2'000'000'000'000,
          .stall_ns = stall_ns};
}

/// Layers that differ in `swaps` pairs of slots.
std::vector<MovePlan> random_plans(std::int32_t layers, std::int32_t swaps, const MoveBudget& budget,
                                   base::Prng& prng) {
  const Shape shape{.experts = 24, .slots = 32, .ranks = 8, .nodes = 1, .groups = 1};
  std::vector<MovePlan> plans;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const SlotMap before = initial_map(shape);
    SlotMap after = before;
    for (std::int32_t i = 0; i < swaps; ++i)
      std::swap(after[at(static_cast<std::int64_t>(prng.below(32)))],
                after[at(static_cast<std::int64_t>(prng.below(32)))]);
    MoveOptions options;
    options.budget = budget;
    plans.push_back(*plan_moves({shape, shape, before, after, {}, {}, options}));
  }
  return plans;
}

TEST(Costs, BytesOverSpeedRoundedUp) {
  const auto costs = costs_of(budget_of(1));
  ASSERT_TRUE(costs.has_value());
  EXPECT_EQ(costs->link_ns, 376'000);
  EXPECT_EQ(costs->node_link_ns, 376'000);  // the same link when no other is named
  EXPECT_EQ(costs->local_ns, 9'400);
  MoveBudget budget = budget_of(0);
  budget.bytes_per_copy = 1;
  budget.link_bytes_per_s = 3;
  EXPECT_EQ(costs_of(budget)->link_ns, 333'333'334);
  EXPECT_EQ(costs_of({})->link_ns, 0);
}

/// Hosts in whose staging the layer has something that is still to be read, before or while a batch runs.
std::set<std::int32_t> staged_hosts(const MovePlan& plan, std::int32_t batch) {
  std::set<std::int32_t> hosts;
  const auto valid = valid_places(plan, batch, false);
  for (std::size_t i = 0; i < valid.size(); ++i) {
    if (static_cast<std::int32_t>(i) % plan.places_per_host() >= plan.width && valid[i] >= 0)
      hosts.insert(static_cast<std::int32_t>(i) / plan.places_per_host());
  }
  for (const Move& move : plan.batches[at(batch)]) {
    if (move.to.slot >= plan.width) hosts.insert(move.to.host);
  }
  return hosts;
}

RC_GTEST_PROP(Schedule, EveryBatchOnceInOrderWithinTheStall, (std::uint64_t seed)) {
  base::Prng prng(seed);
  const MoveBudget budget =
      budget_of(prng.below(4) == 0 ? 0 : static_cast<std::int64_t>(100'000 + prng.below(2'000'000)));
  const auto plans = random_plans(static_cast<std::int32_t>(prng.below(12)),
                                  static_cast<std::int32_t>(prng.below(6)), budget, prng);
  const auto schedule = schedule_layers(plans, budget);
  RC_ASSERT(schedule.has_value());
  const auto costs = costs_of(budget);
  std::vector<std::int32_t> next(plans.size());
  for (const MoveRound& round : schedule->rounds) {
    RC_ASSERT(!round.empty());
    std::vector<HostTime> times(8);
    std::set<std::int32_t> staging;
    for (const LayerBatch& item : round) {
      RC_ASSERT(next[at(item.layer)]++ == item.batch);
      const MovePlan& plan = plans[at(item.layer)];
      const auto add = host_times(plan, plan.batches[at(item.batch)], *costs);
      for (std::size_t host = 0; host < times.size(); ++host) times[host] += add[host];
      for (const std::int32_t host : staged_hosts(plan, item.batch)) RC_ASSERT(staging.insert(host).second);
    }
    for (const HostTime& host : times) {
      const std::int64_t slice = (host.ns() + schedule->slices - 1) / schedule->slices;
      RC_ASSERT(slice <= schedule->stall_ns);
      RC_ASSERT(budget.stall_ns == 0 || slice <= budget.stall_ns);
    }
  }
  for (std::size_t layer = 0; layer < plans.size(); ++layer)
    RC_ASSERT(at(next[layer]) == plans[layer].batches.size());
  // A layer that is under way is never left waiting with its staging held.
  std::vector<std::int32_t> last_round(plans.size(), -1);
  for (std::size_t r = 0; r < schedule->rounds.size(); ++r) {
    for (const LayerBatch& item : schedule->rounds[r]) {
      std::int32_t& last = last_round[at(item.layer)];
      RC_ASSERT(last < 0 || last + 1 == static_cast<std::int32_t>(r));
      last = static_cast<std::int32_t>(r);
    }
  }
}

/// One layer in which rank `to` takes a copy of expert `from` in place of a second copy of its own.
MovePlan one_copy(std::int32_t from, std::int32_t to, const MoveBudget& budget) {
  const Shape shape{.experts = 8, .slots = 16, .ranks = 8, .nodes = 1, .groups = 1};
  SlotMap before(16);
  for (std::int32_t rank = 0; rank < 8; ++rank) before[at(2 * rank)] = before[at(2 * rank + 1)] = rank;
  SlotMap after = before;
  after[at(2 * to + 1)] = from;
  MoveOptions options;
  options.budget = budget;
  return *plan_moves({shape, shape, before, after, {}, {}, options});
}

TEST(Schedule, LayersOfOneCopyShareARoundWhileNoRankHasTwo) {
  const MoveBudget budget = budget_of(400'000);  // one copy's time, 376 us
  const std::vector<MovePlan> plans{one_copy(0, 1, budget), one_copy(2, 3, budget), one_copy(1, 0, budget),
                                    one_copy(2, 0, budget), one_copy(4, 5, budget)};
  const auto schedule = schedule_layers(plans, budget);
  ASSERT_TRUE(schedule.has_value());
  // Rank 1 may receive and send at once; rank 0 may not receive twice.
  ASSERT_EQ(schedule->rounds.size(), 2U);
  EXPECT_EQ(schedule->rounds[0].size(), 3U);
  EXPECT_EQ(schedule->rounds[1].size(), 2U);
  EXPECT_EQ(schedule->stall_ns, 376'000);
  const std::vector<MovePlan> still(3, one_copy(4, 4, budget));
  const auto none = schedule_layers(still, budget);
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->done({0, 0}));
}

TEST(Schedule, PositionWalksSlicesThenRounds) {
  MoveSchedule schedule;
  schedule.rounds.resize(2);
  schedule.slices = 3;
  MovePosition position;
  std::int64_t steps = 0;
  while (!schedule.done(position)) {
    position = schedule.next(position);
    ++steps;
  }
  EXPECT_EQ(steps, schedule.steps());
  EXPECT_EQ(position, (MovePosition{2, 0}));
}

TEST(Schedule, FaultsNameTheLayer) {
  base::Prng prng(1);
  const MoveBudget budget = budget_of(1'000'000);
  auto plans = random_plans(2, 3, budget, prng);
  MoveBudget other = budget;
  other.bytes_per_copy = 5;
  EXPECT_THAT(schedule_layers(plans, other).error().message,
              HasSubstr("layer 0 was planned for copies of 18800000"));
  plans[1].hosts = 9;
  EXPECT_THAT(schedule_layers(plans, budget).error().message, HasSubstr("layer 1 moves between 9 hosts"));
}

}  // namespace
}  // namespace trimtab::experts
