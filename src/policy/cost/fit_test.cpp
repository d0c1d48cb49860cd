#include "policy/cost/fit.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/prng.h"
#include "policy/cost/cost_model.h"
#include "policy/cost/drift.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;

/// Steps of one to three chunks whose times follow `truth`, each off by up to `noise`.
std::vector<StepSample> steps(const model::QuadraticCost& truth, int count, double noise,
                              std::uint64_t seed) {
  base::Prng prng(seed);
  const CostModel model(truth, model::QuotaScope::kWholeStep);
  std::vector<StepSample> samples;
  for (int i = 0; i < count; ++i) {
    StepSample sample;
    Nanos time = model.fixed();
    for (std::uint64_t chunk = 0; chunk <= prng.below(3); ++chunk) {
      const TokenCount q{static_cast<std::int64_t>(1 + prng.below(2000))};
      const TokenCount c{static_cast<std::int64_t>(prng.below(8000))};
      sample.chunks.push_back({q, c});
      time += model.cost(q, c, q + c);
    }
    const double factor = 1 + noise * (2 * prng.uniform() - 1);
    sample.actual = Nanos{static_cast<std::int64_t>(static_cast<double>(time.value) * factor)};
    samples.push_back(sample);
  }
  return samples;
}

void expect_near_ratio(std::int64_t value, std::int64_t truth, double ratio) {
  EXPECT_NEAR(static_cast<double>(value), static_cast<double>(truth), ratio * static_cast<double>(truth));
}

TEST(Fit, RecoversTheCoefficients) {
  const model::QuadraticCost truth{5'000'000, 10'000'000, 500};
  const auto fit = fit_quadratic(steps(truth, 60, 0.0, 1));
  ASSERT_TRUE(fit);
  expect_near_ratio(fit->cost.fixed_ns, truth.fixed_ns, 1e-3);
  expect_near_ratio(fit->cost.token_ps, truth.token_ps, 1e-4);
  expect_near_ratio(fit->cost.pair_ps, truth.pair_ps, 3e-3);
  EXPECT_LT(fit->error_ratio_mean, 1e-3);
  EXPECT_EQ(fit->samples, 60U);
}

TEST(Fit, SaysItsErrorUnderNoise) {
  const model::QuadraticCost truth{5'000'000, 10'000'000, 2'000};
  const auto fit = fit_quadratic(steps(truth, 400, 0.10, 2));
  ASSERT_TRUE(fit);
  expect_near_ratio(fit->cost.token_ps, truth.token_ps, 0.05);
  EXPECT_NEAR(fit->error_ratio_mean, 0.05, 0.01) << "uniform noise of +-10 % is 5 % in the mean";
  EXPECT_LT(fit->error_ratio_worst, 0.15);
}

TEST(Fit, NoCoefficientIsNegative) {
  // Long chunks run faster per token than short ones: the plain least squares would make the pair term
  // negative.
  std::vector<StepSample> samples;
  for (const std::int64_t q : {100, 200, 400, 800, 1600}) {
    const double ms = static_cast<double>(q) * 0.01 * (1 - static_cast<double>(q) / 5000);
    samples.push_back({{{TokenCount{q}, TokenCount{0}}}, Nanos{static_cast<std::int64_t>(ms * 1e6)}});
  }
  const auto fit = fit_quadratic(samples);
  ASSERT_TRUE(fit);
  EXPECT_GE(fit->cost.fixed_ns, 0);
  EXPECT_GT(fit->cost.token_ps, 0);
  EXPECT_EQ(fit->cost.pair_ps, 0);
  EXPECT_NE(fit->reason.find("kept fixed token of"), std::string::npos) << fit->reason;
}

TEST(Fit, RefusesWhatCannotBeFitted) {
  const auto good = steps({1, 1'000'000, 1}, 3, 0, 3);
  EXPECT_FALSE(fit_quadratic(std::span(good).first(2)));
  auto bad = good;
  bad[1].actual = Nanos{0};
  EXPECT_FALSE(fit_quadratic(bad));
  bad = good;
  bad[2].chunks.clear();
  EXPECT_FALSE(fit_quadratic(bad));
}

TEST(Fit, IdenticalSamplesStillFit) {
  const std::vector<StepSample> same(5, {{{TokenCount{100}, TokenCount{50}}}, Nanos{1'000'000}});
  const auto fit = fit_quadratic(same);
  ASSERT_TRUE(fit);
  EXPECT_LT(fit->error_ratio_mean, 1e-3);
}

constexpr model::QuadraticCost kTruth{5'000'000, 10'000'000, 2'000};

/// Every `every`-th step takes `factor` times as long.
void disturb(std::vector<StepSample>& samples, std::size_t every, double factor) {
  for (std::size_t i = every / 2; i < samples.size(); i += every) {
    samples[i].actual.value =
        static_cast<std::int64_t>(static_cast<double>(samples[i].actual.value) * factor);
  }
}

TEST(RobustFit, OutliersMoveNothing) {
  for (const double factor : {0.02, 0.5, 1.4, 3.0, 500.0}) {
    auto samples = steps(kTruth, 200, 0.01, 4);
    disturb(samples, 5, factor);
    const auto fit = fit_quadratic(samples);
    ASSERT_TRUE(fit);
    expect_near_ratio(fit->cost.token_ps, kTruth.token_ps, 0.005);
    expect_near_ratio(fit->cost.pair_ps, kTruth.pair_ps, 0.02);
    EXPECT_EQ(fit->outliers, 40U) << factor;
    EXPECT_LT(fit->error_ratio_worst, 0.02);
    EXPECT_NE(fit->reason.find("40 outliers left out"), std::string::npos) << fit->reason;
  }
}

TEST(RobustFit, OutliersOfOneKindOfStepMoveNothing) {
  // A neighbour disturbs long steps only: they pull at one coefficient, all the same way.
  auto samples = steps(kTruth, 300, 0.01, 5);
  std::size_t disturbed = 0;
  for (StepSample& sample : samples) {
    if (sample.chunks.size() < 3 || disturbed == 45) continue;
    sample.actual = sample.actual * 2;
    ++disturbed;
  }
  ASSERT_EQ(disturbed, 45U);
  const auto fit = fit_quadratic(samples);
  ASSERT_TRUE(fit);
  expect_near_ratio(fit->cost.token_ps, kTruth.token_ps, 0.005);
  EXPECT_EQ(fit->outliers, 45U);
}

TEST(RobustFit, FewSamplesWithOneSuspendedStep) {
  // What a start-up calibration has: nine steps. One was suspended.
  auto samples = steps(kTruth, 9, 0.005, 6);
  samples[4].actual = samples[4].actual * 8;
  const auto fit = fit_quadratic(samples);
  ASSERT_TRUE(fit);
  expect_near_ratio(fit->cost.token_ps, kTruth.token_ps, 0.02);
  EXPECT_EQ(fit->outliers, 1U);
}

RC_GTEST_PROP(RobustFit, NeverNegativeAlwaysTheSame, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<StepSample> samples;
  for (std::uint64_t i = 0; i < 3 + prng.below(40); ++i) {
    samples.push_back({{{TokenCount{static_cast<std::int64_t>(1 + prng.below(500))},
                         TokenCount{static_cast<std::int64_t>(prng.below(9'000))}}},
                       Nanos{static_cast<std::int64_t>(1 + prng.below(1'000'000'000))}});
  }
  const auto fit = fit_quadratic(samples), again = fit_quadratic(samples);
  RC_ASSERT(fit && again);
  RC_ASSERT(fit->cost.fixed_ns >= 0 && fit->cost.token_ps >= 0 && fit->cost.pair_ps >= 0);
  RC_ASSERT(fit->cost.fixed_ns == again->cost.fixed_ns && fit->cost.token_ps == again->cost.token_ps);
  RC_ASSERT(fit->outliers < samples.size());
}

TEST(CheckedFit, ReportsItsErrorOnStepsItHasNotSeen) {
  auto samples = steps(kTruth, 250, 0.04, 7);
  disturb(samples, 10, 6.0);
  const auto fit = fit_checked(samples);
  ASSERT_TRUE(fit) << base::to_string(fit.error());
  EXPECT_EQ(fit->held_out, 50U);
  EXPECT_NEAR(fit->held_out_error_ratio_mean, 0.02, 0.006) << "uniform noise of +-4 % is 2 % in the mean";
  EXPECT_EQ(fit->outliers, 25U);
  expect_near_ratio(fit->cost.token_ps, kTruth.token_ps, 0.02);
  EXPECT_NE(fit->reason.find("on 50 steps held out"), std::string::npos) << fit->reason;
}

std::string refusal(const std::vector<StepSample>& samples) {
  const auto fit = fit_checked(samples);
  return fit ? "accepted: " + fit->reason : fit.error().message;
}

TEST(CheckedFit, RefusesWhatProductionShouldNotTrust) {
  EXPECT_NE(refusal(steps(kTruth, 29, 0, 8)).find("29 steps; a calibration needs at least 30"),
            std::string::npos);
  std::vector<StepSample> same(60, {{{TokenCount{100}, TokenCount{50}}}, Nanos{1'000'000}});
  EXPECT_NE(refusal(same).find("only 1 distinct shapes"), std::string::npos) << refusal(same);

  const CostModel model(kTruth, model::QuotaScope::kWholeStep);
  const auto step = [&](std::int64_t q, std::int64_t c, double factor) {
    const Nanos time = model.fixed() + model.cost(TokenCount{q}, TokenCount{c}, TokenCount{q + c});
    return StepSample{{{TokenCount{q}, TokenCount{c}}},
                      Nanos{static_cast<std::int64_t>(static_cast<double>(time.value) * factor)}};
  };
  std::vector<StepSample> constant_tokens, two_machines, another_form;
  for (std::int64_t i = 0; i < 60; ++i) {
    constant_tokens.push_back(step(128, 100 * i, 1));
    two_machines.push_back(step(64 + 30 * i, 977 * i % 6'000, i % 5 < 2 ? 2.5 : 1));
    // Time jumps with the length, now cheap, now dear: no quadratic.
    another_form.push_back(step(64 + 30 * i, 977 * i % 6'000, 0.6 + 0.8 * static_cast<double>(i % 7) / 6));
  }
  EXPECT_NE(refusal(constant_tokens).find("tokens hardly varies on its own"), std::string::npos)
      << refusal(constant_tokens);
  EXPECT_NE(refusal(two_machines).find("24 of 60 steps are outliers (40 %"), std::string::npos)
      << refusal(two_machines);
  EXPECT_NE(refusal(another_form).find("it had not seen (at most 10.0 %)"), std::string::npos)
      << refusal(another_form);
  std::vector<StepSample> proportional;  // contexts in step with tokens: pairs = 500 q
  for (std::int64_t q = 2; q < 900; q += 14) proportional.push_back(step(q, 500 - q / 2, 1));
  EXPECT_NE(refusal(proportional).find("pairs hardly vary on their own"), std::string::npos)
      << refusal(proportional);
}

TEST(Drift, AlarmNeedsAFullWindowBeyondTheThreshold) {
  DriftMonitor monitor;
  for (int i = 0; i < 99; ++i) monitor.observe(Nanos{100}, Nanos{150});
  EXPECT_FALSE(monitor.verdict().alarm) << "99 steps are not enough";
  monitor.observe(Nanos{100}, Nanos{150});
  const auto verdict = monitor.verdict();
  EXPECT_TRUE(verdict.alarm);
  EXPECT_NEAR(verdict.error_ratio_mean, 1.0 / 3, 1e-5);
  EXPECT_NEAR(verdict.bias_ratio_mean, 1.0 / 3, 1e-5);
  EXPECT_NE(verdict.reason.find("33.3 %"), std::string::npos) << verdict.reason;
  // A hundred good steps later it is over.
  for (int i = 0; i < 100; ++i) monitor.observe(Nanos{100}, Nanos{100});
  EXPECT_FALSE(monitor.verdict().alarm);
  EXPECT_EQ(monitor.verdict().error_ratio_mean, 0.0);
}

TEST(Drift, ErrorsOfBothSignsCountAndTheBiasShowsTheirSum) {
  DriftMonitor monitor;
  for (int i = 0; i < 50; ++i) {
    monitor.observe(Nanos{120}, Nanos{100});
    monitor.observe(Nanos{80}, Nanos{100});
  }
  EXPECT_TRUE(monitor.verdict().alarm);
  EXPECT_NEAR(monitor.verdict().error_ratio_mean, 0.2, 1e-6);
  EXPECT_NEAR(monitor.verdict().bias_ratio_mean, 0.0, 1e-6);
}

TEST(Drift, ExactlyTheThresholdIsNoAlarmAndEmptyStepsDoNotCount) {
  DriftMonitor monitor({10, 0.10});
  for (int i = 0; i < 10; ++i) monitor.observe(Nanos{90}, Nanos{100});
  EXPECT_FALSE(monitor.verdict().alarm);
  monitor.observe(Nanos{0}, Nanos{100});
  monitor.observe(Nanos{100}, Nanos{0});
  EXPECT_EQ(monitor.verdict().steps, 10);
  EXPECT_NEAR(monitor.verdict().error_ratio_mean, 0.1, 1e-6);
  // One step of a suspended machine: bounded, and gone after the window.
  monitor.observe(Nanos{INT64_MAX}, Nanos{1});
  EXPECT_TRUE(monitor.verdict().alarm);
  for (int i = 0; i < 10; ++i) monitor.observe(Nanos{100}, Nanos{100});
  EXPECT_FALSE(monitor.verdict().alarm);
}

}  // namespace
}  // namespace trimtab::policy
