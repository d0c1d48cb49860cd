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
