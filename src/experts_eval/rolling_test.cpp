#include "experts_eval/rolling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trimtab::experts_eval {
namespace {

using experts::LoadWindow;
using experts::Shape;
using experts::SlotMap;

constexpr Shape kTwoRanks{2, 2, 2, 1, 1};

/// Step t gives expert 0 a load of t and expert 1 one of 10.
Loads ramp(std::int32_t steps) {
  Loads loads{steps, 1, 2, {}};
  for (std::int32_t t = 0; t < steps; ++t) loads.counts.insert(loads.counts.end(), {t, 10});
  return loads;
}

/// Exchanges the two experts at every plan and remembers what it was shown.
struct Recorder {
  std::vector<double> newest, steps;
  std::vector<SlotMap> current;

  Rule rule() {
    const auto plan = [this](const Shape&, const LoadWindow& window, std::span<const std::int32_t> map) {
      steps.push_back(window.steps());
      newest.push_back(window.of(0)[static_cast<std::size_t>(window.steps()) - 1]);
      current.emplace_back(map.begin(), map.end());
      return base::Result<SlotMap>(SlotMap{map[1], map[0]});
    };
    return {"recorder", plan, plan};
  }
};

TEST(Roll, ShowsTheRuleOnlyStepsThatArePast) {
  Recorder recorder;
  RollingOptions options{
      .window_steps = 4, .first_window_steps = 6, .period_steps = 5, .first_plan_step = 10};
  const Score score = *roll(ramp(21), kTwoRanks, recorder.rule(), options);
  EXPECT_EQ(recorder.newest, (std::vector<double>{9, 14, 19}));
  EXPECT_EQ(recorder.steps, (std::vector<double>{6, 4, 4}));
  EXPECT_EQ(recorder.current, (std::vector<SlotMap>{{0, 1}, {1, 0}, {0, 1}}));
  EXPECT_EQ(score.plans, 2);
  EXPECT_DOUBLE_EQ(score.moves_per_plan, 2.0);
  EXPECT_DOUBLE_EQ(score.moves, 4.0 / 11) << "two exchanges in the 11 steps scored; the first plan is free";
}

TEST(Roll, ScoresPeaksOverMeans) {
  const Score score = *roll(ramp(21), kTwoRanks, no_balancing(), {.window_steps = 4, .first_plan_step = 10});
  double peaks = 0, means = 0, ratios = 0;
  for (int t = 10; t < 21; ++t) peaks += t, means += (t + 10) / 2.0, ratios += t / ((t + 10) / 2.0) / 11;
  EXPECT_DOUBLE_EQ(score.of_sums, peaks / means);
  EXPECT_NEAR(score.mean_ratio, ratios, 1e-12);
  EXPECT_EQ(score.moves, 0);
}

/// Puts the two heavy experts of the newest step apart; four experts on two ranks.
Rule parting() {
  const auto plan = [](const Shape&, const LoadWindow& window, std::span<const std::int32_t>) {
    const bool late = window.of(0)[static_cast<std::size_t>(window.steps()) - 1] > 0;
    return base::Result<SlotMap>(late ? SlotMap{0, 2, 1, 3} : SlotMap{0, 1, 2, 3});
  };
  return {"parting", plan, plan};
}

TEST(Roll, ALatePlanServesLate) {
  constexpr Shape kShape{4, 4, 2, 1, 1};
  Loads loads{30, 1, 4, {}};
  for (int t = 0; t < 30; ++t) {
    const std::int32_t hot = t >= 15 ? 8 : 0;
    loads.counts.insert(loads.counts.end(), {hot, hot, t >= 15 ? 0 : 8, 0});
  }
  // The plan made before step 20 sees the change; step t is even from 20 + delay on and one-sided until then.
  for (const std::int32_t delay : {0, 3, 5, 7}) {
    RollingOptions options{.window_steps = 5, .period_steps = 5, .delay_steps = delay, .first_plan_step = 15};
    const Score score = *roll(loads, kShape, parting(), options);
    const double even = 15 - 5 - delay;
    EXPECT_DOUBLE_EQ(score.mean_ratio, (even * 1 + (15 - even) * 2) / 15) << delay;
  }
}

TEST(Roll, RefusesWhatDoesNotFit) {
  const Loads loads = ramp(20);
  EXPECT_FALSE(roll(loads, kTwoRanks, no_balancing(), {.window_steps = 12, .first_plan_step = 10}));
  EXPECT_FALSE(roll(loads, kTwoRanks, no_balancing(), {.window_steps = 4, .first_plan_step = 20}));
  EXPECT_FALSE(roll(loads, kTwoRanks, no_balancing(), {.period_steps = 0, .first_plan_step = 10}));
  EXPECT_FALSE(roll(loads, {3, 4, 2, 1, 1}, no_balancing(), {.window_steps = 4, .first_plan_step = 10}));
  const auto broken = [](const Shape&, const LoadWindow&, std::span<const std::int32_t>) {
    return base::Result<SlotMap>(SlotMap{0, 0});
  };
  const auto result =
      roll(loads, kTwoRanks, {"broken", broken, broken}, {.window_steps = 4, .first_plan_step = 10});
  EXPECT_NE(result.error().message.find("expert 1 has no slot"), std::string::npos);
}

TEST(HoldOut, PlansOnTheSecondWindowAndScoresTheThird) {
  Recorder recorder;
  const Score score = *hold_out(ramp(30), kTwoRanks, recorder.rule(), 10);
  EXPECT_EQ(recorder.newest, (std::vector<double>{9, 19}));
  double peaks = 0, means = 0;
  for (int t = 20; t < 30; ++t) peaks += t, means += (t + 10) / 2.0;
  EXPECT_DOUBLE_EQ(score.of_sums, peaks / means);
  EXPECT_DOUBLE_EQ(score.slots_moved_ratio, 1.0);
  EXPECT_EQ(hold_out(ramp(30), kTwoRanks, recorder.rule(), 10, true)->moves, 0);
  EXPECT_FALSE(hold_out(ramp(29), kTwoRanks, recorder.rule(), 10));
}

TEST(PairedDifference, IsOfTheDifferences) {
  const std::vector<double> a{1.0, 2.0, 4.0}, b{0.5, 1.0, 2.5};
  const Paired result = paired(a, b);
  EXPECT_DOUBLE_EQ(result.mean, 1.0);
  EXPECT_DOUBLE_EQ(result.standard_error, std::sqrt(0.5 / 2 / 3));
  EXPECT_NEAR(result.upper95, 1.0 + 4.303 * result.standard_error, 1e-12);
  EXPECT_EQ(result.seeds, 3);
}

/// The bands hold the published excesses of this rule on these loads (docs/policies/experts.md), which
/// another generator and another implementation of the rule gave: 1.0687 +- .004 at EP8 lognormal, 16 moves.
TEST(Baselines, DeepInferRollsAsPublished) {
  std::vector<double> ratios, moves;
  for (std::uint64_t seed = 300; seed < 304; ++seed) {
    SyntheticConfig config;
    config.steps = 300, config.layers = 2, config.tokens = 8 * 256, config.seed = seed;
    const Score score = *roll(*generate(config), {384, 416, 8, 1, 1}, deepinfer_rule(), {.period_steps = 20});
    ratios.push_back(score.of_sums);
    moves.push_back(score.moves);
  }
  EXPECT_NEAR(mean_of(ratios).mean, 1.0687, 0.012);
  EXPECT_NEAR(mean_of(moves).mean, 15.9, 0.6);
}

}  // namespace
}  // namespace trimtab::experts_eval
