#include "experts_eval/weighted_rolling.h"

#include <gtest/gtest.h>

#include <numeric>

#include "experts_eval/synthetic_loads.h"

namespace trimtab::experts_eval {
namespace {

using experts::Shape;

RankedLoads synthetic(std::int32_t ranks, std::uint64_t seed, std::int32_t steps = 220) {
  SyntheticConfig config;
  config.steps = steps, config.tokens = 256 * ranks, config.seed = seed;
  const auto loads = *generate(config);
  return RankedLoads::spread(loads.at(0, 0), steps, 384, loads.step_stride(), ranks, seed);
}

WeightedOutcome run(const Shape& shape, const RankedLoads& loads, const WeightedOptions& options) {
  auto outcome = weighted_rolling(shape, loads, options);
  EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
  return *outcome;
}

TEST(RankedLoads, SpreadKeepsEveryToken) {
  const std::vector<std::int32_t> counts = {5, 0, 1000, 7, 2, 0};
  const RankedLoads loads = RankedLoads::spread(counts.data(), 2, 3, 3, 4, 1);
  for (std::int32_t step = 0; step < 2; ++step) {
    for (std::int32_t e = 0; e < 3; ++e) {
      const auto ranks = loads.by_rank(step, e);
      EXPECT_EQ(std::accumulate(ranks.begin(), ranks.end(), 0),
                counts[static_cast<std::size_t>(step * 3 + e)]);
      EXPECT_EQ(loads.counts(step)[static_cast<std::size_t>(e)],
                counts[static_cast<std::size_t>(step * 3 + e)]);
    }
  }
  for (const std::int32_t tokens : loads.by_rank(0, 2)) EXPECT_NEAR(tokens, 250, 60);
}

// Dispatch by weight beats even shares, whole tokens cost next to nothing, and nothing beats the bound.
TEST(WeightedRolling, OrderOfTheFigures) {
  const Shape shape{.experts = 384, .slots = 416, .ranks = 8};
  const RankedLoads loads = synthetic(8, 11);
  for (const RollingPlanner planner : {RollingPlanner::kKeep, RollingPlanner::kPublished,
                                       RollingPlanner::kIncremental, RollingPlanner::kRepair}) {
    WeightedOptions options{.planner = planner};
    options.every_steps = planner == RollingPlanner::kRepair      ? 1
                          : planner == RollingPlanner::kPublished ? 20
                                                                  : 5;
    const WeightedOutcome outcome = run(shape, loads, options);
    EXPECT_EQ(outcome.steps, 120);
    EXPECT_GE(outcome.bound, outcome.mean * (1 - 1e-12));
    EXPECT_LE(outcome.bound, outcome.weighted);
    EXPECT_LE(outcome.bound, outcome.even);
    EXPECT_LE(outcome.bound, outcome.integer);
    // A map made for even shares has little left to gain at 8 ranks, and the estimate is noisy.
    EXPECT_LT(outcome.ratio(outcome.weighted), outcome.ratio(outcome.even) + 0.002);
    EXPECT_TRUE(planner == RollingPlanner::kIncremental ||
                outcome.ratio(outcome.weighted) < outcome.ratio(outcome.even));
    EXPECT_NEAR(outcome.ratio(outcome.integer), outcome.ratio(outcome.weighted), 0.004);
    const bool moves = planner == RollingPlanner::kPublished || planner == RollingPlanner::kIncremental;
    EXPECT_TRUE(!moves || outcome.received > 0);
    EXPECT_TRUE(planner != RollingPlanner::kKeep || outcome.received == 0);
  }
}

// The plan that knows of weighted dispatch, against those that do not: far ahead of the published rule at 64
// ranks, and level with plans that move more.
TEST(WeightedRolling, RepairLevelsManyRanksWithFewMoves) {
  const Shape shape{.experts = 384, .slots = 448, .ranks = 64};
  const RankedLoads loads = synthetic(64, 12);
  const auto incremental = run(shape, loads, {.planner = RollingPlanner::kIncremental, .every_steps = 5});
  const auto repair = run(shape, loads, {.planner = RollingPlanner::kRepair, .every_steps = 1});
  const auto published = run(shape, loads, {.planner = RollingPlanner::kPublished, .every_steps = 20});
  EXPECT_LT(repair.ratio(repair.integer), published.ratio(published.integer) - 0.04);
  EXPECT_LT(repair.ratio(repair.integer), incremental.ratio(incremental.integer) + 0.015);
  EXPECT_LT(repair.moves_per_step(), 1.3);
  EXPECT_LT(repair.moves_per_step() * 10, published.moves_per_step());
  const auto late =
      run(shape, loads, {.planner = RollingPlanner::kRepair, .every_steps = 1, .delay_steps = 5});
  EXPECT_EQ(late.received, repair.received) << "a delay changes when plans act, not what they are";
  EXPECT_GT(late.ratio(late.weighted), repair.ratio(repair.weighted));
}

TEST(WeightedRolling, SameInputsSameFigures) {
  const Shape shape{.experts = 384, .slots = 448, .ranks = 64};
  const RankedLoads loads = synthetic(64, 13, 130);
  const WeightedOptions options{.planner = RollingPlanner::kRepair, .every_steps = 1};
  const auto once = run(shape, loads, options), again = run(shape, loads, options);
  EXPECT_EQ(once.integer, again.integer);
  EXPECT_EQ(once.received, again.received);
}

// Two texts whose tokens all go to the same two experts: the mix shifts from one pair to the other.
TEST(ServedMix, FollowsTheTextOfTheMoment) {
  const std::int32_t windows = 3, tokens = 20;
  std::vector<std::uint8_t> first, second;
  for (std::int32_t i = 0; i < windows * tokens; ++i) {
    first.insert(first.end(), {0, 1, 9, 9});  // layer 0, layer 1
    second.insert(second.end(), {2, 3, 9, 9});
  }
  const RoutedText texts[] = {{first.data(), windows, tokens, 2, 2}, {second.data(), windows, tokens, 2, 2}};
  const ServedMix mix{.requests = 16, .steps = 120, .shift_steps = 60, .seed = 4};
  const auto loads = serve_mix(texts, 0, 10, 4, mix);
  ASSERT_TRUE(loads.has_value());
  for (std::int32_t step = 0; step < 120; ++step) {
    const auto counts = loads->counts(step);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 32);
    EXPECT_EQ(counts[0], counts[1]);
    EXPECT_EQ(counts[0] + counts[2], 16);
    EXPECT_TRUE(step >= 60 || counts[2] == 0) << step;
    EXPECT_TRUE(step < 60 + tokens || counts[0] == 0) << step;
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(loads->by_rank(step, 0)[static_cast<std::size_t>(rank)] +
                    loads->by_rank(step, 2)[static_cast<std::size_t>(rank)],
                4);
    }
  }
  const auto shifting = loads->counts(70);
  EXPECT_GT(shifting[0], 0) << "requests change text one by one, as their windows end";
  EXPECT_GT(shifting[2], 0);
  EXPECT_EQ(serve_mix(texts, 1, 10, 4, mix)->counts(5)[9], 32);
}

TEST(ServedMix, Refusals) {
  const std::vector<std::uint8_t> ids = {0, 7};
  const RoutedText texts[] = {{ids.data(), 1, 1, 1, 2}};
  EXPECT_NE(serve_mix(texts, 0, 4, 2, {}).error().message.find("expert 7"), std::string::npos);
  EXPECT_NE(serve_mix(texts, 1, 8, 2, {}).error().message.find("layer 1"), std::string::npos);
  EXPECT_NE(serve_mix({}, 0, 8, 2, {}).error().message.find("no routed text"), std::string::npos);
  EXPECT_FALSE(serve_mix(texts, 0, 8, 0, {}).has_value());
}

TEST(WeightedRolling, Refusals) {
  const RankedLoads loads(10, 4, 2);
  const Shape shape{.experts = 4, .slots = 4, .ranks = 2};
  EXPECT_NE(weighted_rolling(shape, loads, {.first_step = 10}).error().message.find("step 10 of 10"),
            std::string::npos);
  EXPECT_NE(
      weighted_rolling({.experts = 4, .slots = 4, .ranks = 4}, loads, {}).error().message.find("2 ranks"),
      std::string::npos);
  EXPECT_FALSE(weighted_rolling(shape, loads, {.every_steps = 0, .first_step = 5}).has_value());
}

}  // namespace
}  // namespace trimtab::experts_eval
