#include "policy/experts/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

using testing::HasSubstr;

/// Busiest of `ranks` loads of mean `mean`, normal with a Poisson's deviation; rank 0 is `tilt` too heavy.
double busiest_of(std::int32_t ranks, double mean, double tilt, base::Prng& prng) {
  double busiest = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const double level = mean * (rank == 0 ? 1 + tilt : 1);
    busiest = std::max(busiest, level + std::sqrt(level) * prng.normal());
  }
  return std::max(busiest, mean);
}

int first_alarm(DriftDetector& detector, std::int32_t ranks, double tilt, int steps, std::uint64_t seed) {
  base::Prng prng(seed);
  for (int step = 0; step < steps; ++step) {
    const auto verdict = detector.observe(busiest_of(ranks, 1536, tilt, prng), 1536);
    if (verdict->alarm) return step;
  }
  return -1;
}

TEST(NoiseFloor, IsTheMeanBusiestOfEqualRanks) {
  base::Prng prng(3);
  for (const std::int32_t ranks : {2, 4, 5, 8, 20, 64, 100, 320}) {
    double sum = 0;
    for (int i = 0; i < 4000; ++i) {
      double busiest = -1e9;
      for (std::int32_t rank = 0; rank < ranks; ++rank) busiest = std::max(busiest, prng.normal());
      sum += 1 + busiest / std::sqrt(1536.0);
    }
    EXPECT_NEAR(noise_floor(ranks, 1536), sum / 4000, 0.0012) << ranks;
  }
  EXPECT_EQ(noise_floor(1, 100), 1);
  EXPECT_EQ(noise_floor(8, 0), 1);
  EXPECT_EQ(noise_floor(4, 1e-6), 4);  // the busiest has no more than all
}

TEST(Drift, PlanThatIsRightInTheMeanRaisesNoAlarm) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const std::int32_t ranks : {4, 8, 64}) {
      auto detector = DriftDetector::make({}, ranks);
      // It promised less than counting allows, as plans do on their own window.
      ASSERT_TRUE(detector->promise(1.01).has_value());
      EXPECT_EQ(first_alarm(*detector, ranks, 0, 2000, seed), -1) << ranks << " ranks, seed " << seed;
    }
  }
}

TEST(Drift, RankThatGrewTooHeavyIsFoundWithinAWindow) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto detector = DriftDetector::make({}, 8);
    ASSERT_TRUE(detector->promise(1.03).has_value());
    const int at = first_alarm(*detector, 8, 0.15, 200, seed);
    EXPECT_GE(at, DriftConfig{}.steps_min - 1);
    EXPECT_LE(at, 64) << seed;
  }
}

TEST(Drift, PromiseWorseThanNoiseIsTheMeasure) {
  auto detector = DriftDetector::make({}, 8);
  ASSERT_TRUE(detector->promise(1.18).has_value());  // a layer that no plan levels
  EXPECT_EQ(first_alarm(*detector, 8, 0.15, 1000, 1), -1);
}

TEST(Drift, NoAlarmBeforeAPromiseOrBeforeEnoughSteps) {
  DriftConfig config;
  config.steps_min = 10;
  config.confirm_steps = 1;
  auto detector = DriftDetector::make(config, 4);
  for (int step = 0; step < 50; ++step) EXPECT_FALSE(detector->observe(2000, 1000)->alarm);
  ASSERT_TRUE(detector->promise(1.0).has_value());
  for (int step = 1; step < 10; ++step) EXPECT_FALSE(detector->observe(2000, 1000)->alarm) << step;
  EXPECT_TRUE(detector->observe(2000, 1000)->alarm);
}

TEST(Drift, StaysSilentAfterADismissalAndForgetsAtANewPlan) {
  DriftConfig config;
  config.quiet_steps = 30;
  auto detector = DriftDetector::make(config, 4);
  ASSERT_TRUE(detector->promise(1.0).has_value());
  while (!detector->observe(1500, 1000)->alarm) {
  }
  detector->dismiss();
  int silent = 0;
  while (!detector->observe(1500, 1000)->alarm) ++silent;
  EXPECT_EQ(silent, 30 - 1 + config.confirm_steps - 1);
  ASSERT_TRUE(detector->promise(1.5).has_value());
  EXPECT_FALSE(detector->verdict().alarm);
  EXPECT_EQ(detector->verdict().steps, 0);
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(detector->observe(1500, 1000)->alarm);
}

TEST(Drift, BalanceThatHoversAtTheThresholdDoesNotFlap) {
  DriftConfig config;
  config.steps_max = config.steps_min = 2;
  config.sigmas = 0;
  config.confirm_steps = 3;
  auto detector = DriftDetector::make(config, 4);
  constexpr double kMean = 1e12;  // no counting noise
  ASSERT_TRUE(detector->promise(1.10).has_value());
  const auto observe = [&](double balance) {
    (void)detector->observe(balance * kMean, kMean);
    return detector->observe(balance * kMean, kMean)->alarm;
  };
  EXPECT_FALSE(observe(1.115));  // over the promise, within the tolerance
  EXPECT_FALSE(observe(1.125));
  EXPECT_TRUE(observe(1.125));
  EXPECT_TRUE(observe(1.115));   // a little better does not end the alarm
  EXPECT_FALSE(observe(1.105));  // clearly better does
  EXPECT_FALSE(observe(1.115));
}

TEST(Drift, SumsOverLayersAreJudgedByOneLayersNoise) {
  auto one = DriftDetector::make({}, 8, 1), forty = DriftDetector::make({}, 8, 40);
  ASSERT_TRUE(one->promise(1).has_value() && forty->promise(1).has_value());
  EXPECT_DOUBLE_EQ(one->observe(1600, 1536)->noise_floor,
                   forty->observe(40 * 1600.0, 40 * 1536.0)->noise_floor);
}

TEST(Drift, FaultsNameTheValue) {
  const auto message = [](const auto& result) { return result ? std::string() : result.error().message; };
  auto detector = DriftDetector::make({}, 4);
  EXPECT_THAT(message(detector->promise(0.9)), HasSubstr("0.9"));
  EXPECT_THAT(message(detector->promise(std::nan(""))), HasSubstr("nan"));
  EXPECT_THAT(message(detector->observe(-1, 1)), HasSubstr("-1"));
  EXPECT_THAT(message(detector->observe(1, std::numeric_limits<double>::infinity())), HasSubstr("inf"));
  EXPECT_THAT(message(detector->observe(1, 2)), HasSubstr("swapped"));
  EXPECT_TRUE(detector->observe(0, 0).has_value());  // an idle step
  DriftConfig config;
  config.steps_min = 1;
  EXPECT_THAT(message(DriftDetector::make(config, 4)), HasSubstr("steps_min 1"));
  config.steps_min = 100;
  EXPECT_THAT(message(DriftDetector::make(config, 4)), HasSubstr("steps_max 64"));
  EXPECT_THAT(message(DriftDetector::make({}, 0)), HasSubstr("0 ranks"));
  EXPECT_THAT(message(DriftDetector::make({}, 4, 0)), HasSubstr("0 layers"));
}

WorthInput published() {
  // A decode step of 60 ms in which the experts take a third; 20 copies of 18.8 MB over 50 GB/s.
  return {.balance_now = 1.25,
          .balance_planned = 1.15,
          .gain_kept_ratio = 0.5,
          .noise_floor = 1.05,
          .step_ns = 20e6,
          .steps_until_next = 1000,
          .bytes_busiest_rank = 20 * 18.8e6,
          .bandwidth_bytes_per_s = 50e9,
          .stall_ratio = 1,
          .payback_ratio = 1};
}

TEST(Worth, WeighsSavedTimeAgainstMovingTime) {
  const auto found = worth(published());
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->gain_ns_per_step, 20e6 * 0.10 / 1.25 * 0.5, 1);
  EXPECT_NEAR(found->cost_ns, 7.52e6, 1);
  EXPECT_NEAR(found->break_even_steps, 9.4, 1e-6);
  EXPECT_TRUE(found->pays);
}

TEST(Worth, ShortPeriodOrSlowLinkOrNoiseDoesNotPay) {
  WorthInput input = published();
  input.steps_until_next = 9;
  EXPECT_FALSE(worth(input)->pays);
  input = published();
  input.bandwidth_bytes_per_s = 4e8;
  EXPECT_FALSE(worth(input)->pays);
  input = published();
  input.payback_ratio = 200;
  EXPECT_FALSE(worth(input)->pays);
  input = published();
  input.noise_floor = 1.25;  // both plans are as good as counting lets them be
  EXPECT_EQ(worth(input)->gain_ns, 0);
  EXPECT_EQ(worth(input)->break_even_steps, -1);
  EXPECT_FALSE(worth(input)->pays);
  input = published();
  std::swap(input.balance_now, input.balance_planned);
  EXPECT_FALSE(worth(input)->pays);
  EXPECT_EQ(worth(input)->break_even_steps, -1);
}

TEST(Worth, PlanThatMovesNothingPaysIfItGainsAtAll) {
  WorthInput input = published();
  input.bytes_busiest_rank = input.bandwidth_bytes_per_s = 0;
  EXPECT_TRUE(worth(input)->pays);
  EXPECT_EQ(worth(input)->break_even_steps, 0);
  input.balance_planned = input.balance_now;
  EXPECT_FALSE(worth(input)->pays);  // the same map again
}

TEST(Worth, FaultsNameTheValue) {
  WorthInput input = published();
  input.bandwidth_bytes_per_s = 0;
  EXPECT_THAT(worth(input).error().message, HasSubstr("bandwidth_bytes_per_s"));
  input = published();
  input.step_ns = -3;
  EXPECT_THAT(worth(input).error().message, HasSubstr("step_ns is -3"));
  input = published();
  input.balance_now = 0;
  EXPECT_FALSE(worth(input).has_value());
}

RC_GTEST_PROP(Worth, MoreStepsOrBandwidthNeverTurnAYesIntoANo, (std::uint64_t seed)) {
  base::Prng prng(seed);
  WorthInput input = published();
  input.balance_now = 1 + prng.uniform();
  input.balance_planned = 1 + prng.uniform();
  input.steps_until_next = 1000 * prng.uniform();
  input.bytes_busiest_rank = 1e10 * prng.uniform();
  const auto before = worth(input);
  input.steps_until_next *= 1 + prng.uniform();
  input.bandwidth_bytes_per_s *= 1 + prng.uniform();
  const auto after = worth(input);
  RC_ASSERT(!before->pays || after->pays);
  RC_ASSERT(!before->pays || input.balance_planned < input.balance_now);
}

TEST(Replacement, NeedsACauseAndAPlanThatPays) {
  DriftVerdict alarm;
  alarm.alarm = true;
  Worth good;
  good.pays = true;
  EXPECT_EQ(decide_replacement(false, {}, good), Replacement::kKeep);
  EXPECT_EQ(decide_replacement(true, {}, good), Replacement::kScheduled);
  EXPECT_EQ(decide_replacement(true, alarm, good), Replacement::kScheduled);
  EXPECT_EQ(decide_replacement(false, alarm, good), Replacement::kEarly);
  EXPECT_EQ(decide_replacement(true, {}, {}), Replacement::kSkip);
  EXPECT_EQ(decide_replacement(false, alarm, {}), Replacement::kSkip);
}

TEST(Describe, SaysTheNumbers) {
  auto detector = DriftDetector::make({}, 8);
  ASSERT_TRUE(detector->promise(1.05).has_value());
  EXPECT_THAT(describe(*detector->observe(1700, 1536)), HasSubstr("held-out 1.1068 over 1 steps > 1.0700"));
  EXPECT_EQ(describe(*worth(published()), 1000),
            "saves 800.0 us a step, moves cost 7.520 ms: pays after 9 of 1000 steps");
}

}  // namespace
}  // namespace trimtab::experts
