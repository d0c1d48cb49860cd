#include "policy/experts/moves/move_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/prng.h"
#include "policy/experts/moves/executor.h"

namespace trimtab::experts {
namespace {

using testing::HasSubstr;

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Shape shape_of(std::int32_t experts, std::int32_t slots, std::int32_t ranks, std::int32_t nodes = 1) {
  return {.experts = experts, .slots = slots, .ranks = ranks, .nodes = nodes, .groups = 1};
}

/// Any legal map: every expert somewhere, the rest drawn; copies may share a rank.
SlotMap random_map(const Shape& shape, base::Prng& prng) {
  SlotMap map(at(shape.slots));
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    map[at(slot)] = slot < shape.experts ? slot : static_cast<std::int32_t>(prng.below(at(shape.experts)));
  }
  prng.shuffle(std::span(map));
  return map;
}

std::vector<std::byte> bytes_of(std::int32_t expert, std::int64_t size) {
  base::Prng prng(7, at(expert));
  std::vector<std::byte> out(at(size));
  for (std::byte& byte : out) byte = static_cast<std::byte>(prng.next());
  return out;
}

ExpertBytes truth(std::int64_t size) {
  return [size](std::int32_t expert) { return bytes_of(expert, size); };
}

struct Case {
  Shape before, after;
  SlotMap map_before, map_after;
  std::vector<std::int32_t> rank_before, lost;
  MoveOptions options;

  MoveRequest request() const { return {before, after, map_before, map_after, rank_before, lost, options}; }
};

/// Ranks, slots, maps, losses, staging and budgets of all kinds; small, so that cycles and collisions happen.
Case random_case(std::uint64_t seed, bool same_ranks) {
  base::Prng prng(seed);
  const auto draw = [&](std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(prng.below(at(high - low + 1)));
  };
  const std::int32_t experts = draw(1, 14);
  const auto shape = [&](std::int32_t ranks) {
    const std::int32_t width_min = (experts + ranks - 1) / ranks;
    const std::int32_t nodes = ranks % 2 == 0 && draw(0, 1) == 1 ? 2 : 1;
    return shape_of(experts, ranks * draw(width_min, std::min(width_min + 3, experts)), ranks, nodes);
  };
  Case out;
  out.before = shape(draw(1, 6));
  out.after = same_ranks ? out.before : shape(draw(1, 6));
  out.map_before = random_map(out.before, prng);
  out.map_after = random_map(out.after, prng);
  if (!same_ranks && draw(0, 1) == 1) {
    std::vector<std::int32_t> old(at(out.before.ranks + out.after.ranks), -1);
    for (std::int32_t rank = 0; rank < out.before.ranks; ++rank) old[at(rank)] = rank;
    prng.shuffle(std::span(old));
    old.resize(at(out.after.ranks));
    out.rank_before = old;
  }
  if (!same_ranks) {
    for (std::int32_t rank = 0; rank < out.before.ranks; ++rank) {
      if (draw(0, 3) == 0) out.lost.push_back(rank);
    }
  }
  out.options.staging_slots = draw(1, 4);
  out.options.same_node_first = draw(0, 1) == 1;
  out.options.budget.bytes_per_copy = draw(1, 40);
  out.options.budget.link_bytes_per_s = 1'000'000'000;
  out.options.budget.node_link_bytes_per_s = 4'000'000'000;
  out.options.budget.local_bytes_per_s = 16'000'000'000;
  out.options.budget.stall_ns = draw(0, 3) == 0 ? 0 : draw(1, 150);
  return out;
}

/// What each batch promises: no place is both read and written or written twice, sources are valid, hosts
/// stay within the budget, and staging stays within its slots.
void check_batches(const Case& input, const MovePlan& plan) {
  const auto costs = costs_of(input.options.budget);
  RC_ASSERT(costs.has_value());
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(plan.batches.size()); ++i) {
    const MoveBatch& batch = plan.batches[at(i)];
    RC_ASSERT(!batch.empty());
    const std::vector<std::int32_t> valid = valid_places(plan, i, true);
    std::set<std::pair<std::int32_t, std::int32_t>> written;
    for (const Move& move : batch) {
      RC_ASSERT(written.insert({move.to.host, move.to.slot}).second);
      RC_ASSERT(move.to.slot < plan.places_per_host());
    }
    for (const Move& move : batch) {
      if (move.kind == MoveKind::kReload) continue;
      RC_ASSERT((move.kind == MoveKind::kLocal) == (move.from.host == move.to.host));
      RC_ASSERT(!written.contains({move.from.host, move.from.slot}));
      RC_ASSERT(valid[at(move.from.host * plan.places_per_host() + move.from.slot)] == move.expert);
    }
    if (input.options.budget.stall_ns == 0) continue;
    for (const HostTime& host : host_times(plan, batch, *costs))
      RC_ASSERT((host.ns() + plan.slices - 1) / plan.slices <= input.options.budget.stall_ns);
  }
}

/// Runs it, stopped in every slice in many ways: proved before, while and after, and resumed.
void check_execution(const MovePlan& plan, std::uint64_t seed) {
  base::Prng prng(seed, 1);
  MemoryExecutor executor(plan, truth(plan.bytes_per_copy));
  while (!executor.done()) {
    const auto before = executor.prove(false);
    RC_ASSERT(before.has_value());
    for (int tear = 0; tear < 3; ++tear) {
      const MovePosition position = executor.position();
      executor.tear_slice(prng.next());
      const auto torn = executor.prove(true);
      RC_ASSERT(torn.has_value());
      executor.resume(position);
    }
    executor.run_slice();
  }
  RC_ASSERT(executor.prove(false).has_value());
}

void check_all(const Case& input, std::uint64_t seed) {
  const auto plan = plan_moves(input.request());
  RC_ASSERT(plan.has_value());
  check_batches(input, *plan);
  check_execution(*plan, seed);
  RC_ASSERT(plan->sends_max() == plan->sends_max_bound);
}

RC_GTEST_PROP(MovePlan, ServesEveryExpertAtEveryInterruptionAndEndsRight, (std::uint64_t seed)) {
  check_all(random_case(seed, true), seed);
}

RC_GTEST_PROP(MovePlan, RanksMayBeLostLeaveOrJoinAndSlotsGrowOrShrink, (std::uint64_t seed)) {
  check_all(random_case(seed, false), seed);
}

RC_GTEST_PROP(MovePlan, CrossesLinksOnlyForWhatRanksLack, (std::uint64_t seed)) {
  const Case input = random_case(seed, true);
  const auto plan = plan_moves(input.request());
  RC_ASSERT(plan.has_value());
  RC_ASSERT(plan->received() == received_copies(input.after, input.map_before, input.map_after));
  std::int64_t links = 0;
  std::vector<HostMoves> counted(at(plan->hosts));
  for (const MoveBatch& batch : plan->batches) {
    for (const Move& move : batch) {
      if (move.kind == MoveKind::kLocal) {
        ++counted[at(move.to.host)].locals;
        continue;
      }
      ++links;
      ++counted[at(move.to.host)].receives;
      ++counted[at(move.from.host)].sends;
    }
  }
  RC_ASSERT(links == plan->received());
  for (std::size_t host = 0; host < counted.size(); ++host) {
    RC_ASSERT(counted[host].sends == plan->by_host[host].sends);
    RC_ASSERT(counted[host].receives == plan->by_host[host].receives);
    RC_ASSERT(counted[host].locals == plan->by_host[host].locals);
  }
}

RC_GTEST_PROP(MovePlan, OldMapStaysWholeUntilAllCopiesAreThere, (std::uint64_t seed)) {
  Case input = random_case(seed, seed % 2 == 0);
  input.options.keep_old_map = true;
  input.options.staging_slots = input.after.slots_per_rank();
  const auto plan = plan_moves(input.request());
  RC_ASSERT(plan.has_value());
  check_batches(input, *plan);
  check_execution(*plan, seed);
  std::set<std::pair<std::int32_t, std::int32_t>> arrived;
  for (std::int32_t i = 0; i < plan->commit_batch; ++i) {
    for (const Move& move : plan->batches[at(i)])
      RC_ASSERT(plan->before[at(move.to.host * plan->places_per_host() + move.to.slot)] < 0);
  }
  for (std::size_t i = at(plan->commit_batch); i < plan->batches.size(); ++i) {
    for (const Move& move : plan->batches[i]) RC_ASSERT(move.kind == MoveKind::kLocal);
  }
}

RC_GTEST_PROP(MovePlan, SameInputsGiveTheSamePlan, (std::uint64_t seed)) {
  const Case input = random_case(seed, false);
  const auto one = plan_moves(input.request()), two = plan_moves(input.request());
  RC_ASSERT(one.has_value() && two.has_value());
  RC_ASSERT(one->batches.size() == two->batches.size());
  for (std::size_t i = 0; i < one->batches.size(); ++i) {
    RC_ASSERT(std::ranges::equal(one->batches[i], two->batches[i], [](const Move& a, const Move& b) {
      return a.kind == b.kind && a.expert == b.expert && a.from == b.from && a.to == b.to;
    }));
  }
}

TEST(MovePlan, EqualMapsMoveNothing) {
  const Shape shape = shape_of(8, 12, 4);
  const SlotMap map = initial_map(shape);
  const auto plan = plan_moves({shape, shape, map, map});
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->batches.empty());
  EXPECT_EQ(plan->received(), 0);
}

TEST(MovePlan, RotationWithoutSpareCopiesTakesOneStagingSlot) {
  const Shape shape = shape_of(6, 6, 6);
  const SlotMap before{0, 1, 2, 3, 4, 5}, after{5, 0, 1, 2, 3, 4};
  MoveOptions options;
  options.staging_slots = 0;
  const auto none = plan_moves({shape, shape, before, after, {}, {}, options});
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message, HasSubstr("staging_slots 1"));
  options.staging_slots = 1;
  const auto plan = plan_moves({shape, shape, before, after, {}, {}, options});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->received(), 6);
  EXPECT_EQ(plan->sends_max(), 1);
  EXPECT_EQ(plan->staging_used, 1);
  EXPECT_TRUE(plan->staging_serves);  // for one batch, each expert's new copy is only there
  // All six arrive in staging at once, and step into place at once.
  EXPECT_EQ(plan->batches.size(), 2U);
}

TEST(MovePlan, TurnInsideARankNeedsNoLink) {
  const Shape shape = shape_of(4, 8, 2);
  const SlotMap before{0, 1, 2, 3, 0, 1, 2, 3}, after{1, 2, 3, 0, 0, 1, 2, 3};
  MoveOptions options;
  options.budget.bytes_per_copy = 3;
  const auto plan = plan_moves({shape, shape, before, after, {}, {}, options});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->received(), 0);
  EXPECT_EQ(plan->by_host[0].locals, 5);  // four, and one that steps aside
  MemoryExecutor executor(*plan, truth(3));
  executor.run();
  EXPECT_TRUE(executor.prove(false).has_value());
}

TEST(MovePlan, SendsAreSharedByTheHoldersOfAHotExpert) {
  // Expert 0 lies on ranks 0 and 1 and goes to six more: three each, although rank 0 has the lower id.
  const Shape shape = shape_of(8, 16, 8);
  SlotMap before(16), after(16);
  for (std::int32_t rank = 0; rank < 8; ++rank) {
    before[at(2 * rank)] = after[at(2 * rank)] = rank;
    before[at(2 * rank + 1)] = (rank + 1) % 8;
    after[at(2 * rank + 1)] = 0;
  }
  before[0 * 2 + 1] = 1, before[1 * 2 + 1] = 0, before[7 * 2 + 1] = 6;
  after[0 * 2 + 1] = 1;
  const auto plan = plan_moves({shape, shape, before, after});
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->received(), 6);
  EXPECT_EQ(plan->sends_max(), 3);
}

TEST(MovePlan, ExpertWithoutALivingCopyIsReloadedOnceAndSentOn) {
  const Shape before = shape_of(4, 4, 4), after = shape_of(4, 6, 3);
  const SlotMap map_before{0, 1, 2, 3}, map_after{0, 3, 1, 3, 2, 3};
  const std::vector<std::int32_t> lost{3};
  MoveOptions options;
  options.budget.bytes_per_copy = 16;
  const auto plan = plan_moves({before, after, map_before, map_after, {}, lost, options});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->reloaded, testing::ElementsAre(3));
  EXPECT_EQ(plan->hosts, 3);
  EXPECT_EQ(plan->received(), 2);
  EXPECT_EQ(plan->by_host[0].reloads + plan->by_host[1].reloads + plan->by_host[2].reloads, 1);
  MemoryExecutor executor(*plan, truth(16));
  executor.run();
  EXPECT_TRUE(executor.prove(false).has_value());
}

TEST(MovePlan, LeavingRankSendsItsExpertsAway) {
  const Shape before = shape_of(4, 4, 2), after = shape_of(4, 4, 1);
  const SlotMap map_before{0, 1, 2, 3}, map_after{2, 3, 0, 1};
  const std::vector<std::int32_t> rank_before{1};  // rank 0 leaves
  const auto plan = plan_moves({before, after, map_before, map_after, rank_before});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->hosts, 2);
  EXPECT_EQ(plan->received(), 2);
  EXPECT_EQ(plan->by_host[1].sends, 2);
  EXPECT_TRUE(plan->reloaded.empty());
}

TEST(MovePlan, CopyLongerThanTheBudgetMovesInSlices) {
  const Shape shape = shape_of(2, 4, 2);
  const SlotMap before{0, 0, 1, 1}, after{0, 1, 1, 0};
  MoveOptions options;
  options.budget = {.bytes_per_copy = 18'800'000,
                    .link_bytes_per_s = 50'000'000'000,
                    .node_link_bytes_per_s = 0,
                    .local_bytes_per_s = 0,
                    .stall_ns = 100'000};
  const auto plan = plan_moves({shape, shape, before, after, {}, {}, options});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->batches.size(), 1U);
  EXPECT_EQ(plan->slices, 4);  // 376 us in parts of at most 100
  EXPECT_EQ(plan->stall_ns, 94'000);
}

TEST(MovePlan, FaultsNameTheValueAndTheFix) {
  const Shape shape = shape_of(4, 8, 4);
  const SlotMap map = initial_map(shape);
  const auto message = [](const base::Result<MovePlan>& plan) {
    return plan.has_value() ? std::string() : plan.error().message;
  };
  const SlotMap wrong{0, 1, 2, 9, 0, 1, 2, 3};
  EXPECT_THAT(message(plan_moves({shape, shape, map, wrong})), HasSubstr("expert 9"));
  EXPECT_THAT(message(plan_moves({shape, shape_of(5, 8, 4), map, map})), HasSubstr("expert 4 has no slot"));
  EXPECT_THAT(message(plan_moves({shape, shape_of(4, 7, 4), map, map})), HasSubstr("use 8"));
  const std::vector<std::int32_t> twice{0, 1, 1, 3}, beyond{0, 1, 2, 4}, few{0, 1};
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, twice})),
              HasSubstr("old rank 1 is both new rank 1 and 2"));
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, beyond})), HasSubstr("old rank 4"));
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, few})), HasSubstr("names 2 ranks"));
  const std::vector<std::int32_t> lost{7};
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, {}, lost})), HasSubstr("lost rank 7"));
  MoveOptions options;
  options.staging_slots = -1;
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, {}, {}, options})), HasSubstr("-1 staging slots"));
  options.staging_slots = 1;
  options.budget.stall_ns = 5;
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, {}, {}, options})), HasSubstr("bytes_per_copy"));
  options.budget.stall_ns = -5;
  EXPECT_THAT(message(plan_moves({shape, shape, map, map, {}, {}, options})), HasSubstr("stall_ns is -5"));
  options.budget.stall_ns = 0;
  options.keep_old_map = true;
  const SlotMap other{2, 3, 2, 3, 0, 1, 0, 1};
  EXPECT_THAT(message(plan_moves({shape, shape, SlotMap{0, 1, 0, 1, 2, 3, 2, 3}, other, {}, {}, options})),
              HasSubstr("receives 2 copies while the old map stays whole, but has 1 staging slots: give 2"));
}

}  // namespace
}  // namespace trimtab::experts
