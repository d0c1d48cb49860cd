#include "experts_eval/synthetic_loads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace trimtab::experts_eval {
namespace {

struct Moments {
  double mean = 0, variance = 0, third = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments out;
  for (const double value : values) out.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    const double d = value - out.mean;
    out.variance += d * d / static_cast<double>(values.size());
    out.third += d * d * d / static_cast<double>(values.size());
  }
  return out;
}

TEST(Poisson, HasTheMomentsOfItsMean) {
  for (const double mean : {0.05, 0.7, 4.0, 9.99, 10.0, 13.5, 60.0, 1024.0, 3e5}) {
    base::Prng prng(7);
    std::vector<double> values(200000);
    for (double& value : values) value = static_cast<double>(poisson(prng, mean));
    const Moments m = moments(values);
    const auto n = static_cast<double>(values.size());
    // Mean, variance and third central moment are all the mean; five standard errors of each estimate.
    EXPECT_NEAR(m.mean, mean, 5 * std::sqrt(mean / n)) << mean;
    EXPECT_NEAR(m.variance, mean, 5 * std::sqrt((2 * mean * mean + mean) / n)) << mean;
    const double sixth = mean + 25 * mean * mean + 15 * mean * mean * mean;
    EXPECT_NEAR(m.third, mean, 5 * std::sqrt(sixth / n)) << mean;
  }
}

TEST(Poisson, HasTheProbabilitiesOfItsMean) {
  for (const double mean : {2.5, 10.0, 25.0}) {
    base::Prng prng(11);
    constexpr int kDraws = 400000;
    std::vector<int> seen(100);
    for (int i = 0; i < kDraws; ++i)
      ++seen[std::min<std::size_t>(99, static_cast<std::size_t>(poisson(prng, mean)))];
    double chi = 0;
    int cells = 0;
    for (int k = 0; k < 99; ++k) {
      const double expected = kDraws * std::exp(k * std::log(mean) - mean - std::lgamma(k + 1.0));
      if (expected < 20) continue;
      chi += (seen[static_cast<std::size_t>(k)] - expected) * (seen[static_cast<std::size_t>(k)] - expected) /
             expected;
      ++cells;
    }
    EXPECT_LT(chi, cells + 5 * std::sqrt(2.0 * cells)) << mean;
  }
}

TEST(Poisson, OfZeroIsZero) {
  base::Prng prng(1);
  EXPECT_EQ(poisson(prng, 0), 0);
}

/// Deviation of the log of each expert's mean count over all steps.
double log_deviation(const Loads& loads) {
  std::vector<double> logs;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    for (std::int32_t expert = 0; expert < loads.experts; ++expert) {
      double sum = 0;
      for (std::int32_t step = 0; step < loads.steps; ++step) sum += loads.at(step, layer)[expert];
      logs.push_back(std::log(std::max(sum, 0.5) / loads.steps));
    }
  }
  return std::sqrt(moments(logs).variance);
}

SyntheticConfig still() {
  SyntheticConfig config;
  config.drift = 0, config.burst_probability = 0, config.layers = 8, config.steps = 100, config.seed = 3;
  return config;
}

TEST(SyntheticLoads, PopularityIsLognormalOfTheGivenWidth) {
  SyntheticConfig config = still();
  for (const double sigma : {0.0, 0.4, 0.8}) {
    config.sigma = sigma;
    EXPECT_NEAR(log_deviation(*generate(config)), sigma, 0.03) << sigma;
  }
}

TEST(SyntheticLoads, PopularityIsZipfInRandomOrder) {
  SyntheticConfig config = still();
  config.zipf = 0.7;
  const Loads loads = *generate(config);
  std::vector<double> share(static_cast<std::size_t>(config.experts));
  for (std::int32_t e = 0; e < config.experts; ++e) {
    for (std::int32_t step = 0; step < config.steps; ++step)
      share[static_cast<std::size_t>(e)] += loads.at(step, 5)[e];
  }
  EXPECT_GT(std::abs(std::ranges::max_element(share) - share.begin()), 0)
      << "the hottest expert is not expert 0";
  std::ranges::sort(share, std::greater());
  // The head stands over the median as (rank ratio)^0.7, count noise aside.
  EXPECT_NEAR(share[0] / share[191], std::pow(192.0, 0.7), 0.03 * std::pow(192.0, 0.7));
  EXPECT_NEAR(share[7] / share[191], std::pow(24.0, 0.7), 0.03 * std::pow(24.0, 0.7));
}

TEST(SyntheticLoads, EveryStepHasItsTokensAndNoExpertMoreThanAllOfThem) {
  SyntheticConfig config;
  config.layers = 3, config.sigma = 2, config.tokens = 512, config.steps = 300;
  const Loads loads = *generate(config);
  double total = 0;
  for (const std::int32_t count : loads.counts) {
    EXPECT_GE(count, 0);
    EXPECT_LE(count, config.tokens);
    total += count;
  }
  const double expected = 512.0 * 6 * 3 * 300;
  // Counts of experts that every token takes are cut at `tokens`, so a little is missing, never much.
  EXPECT_LT(total, expected * 1.01);
  EXPECT_GT(total, expected * 0.95);
}

/// Log popularity of one expert at one step, from many tokens so that counts are nearly rates.
std::vector<double> log_shares(const Loads& loads, std::int32_t step) {
  std::vector<double> out;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    double mean = 0;
    const std::size_t first = out.size();
    for (std::int32_t e = 0; e < loads.experts; ++e) {
      out.push_back(std::log(std::max(1, loads.at(step, layer)[e])));
      mean += out.back() / loads.experts;
    }
    for (std::size_t i = first; i < out.size(); ++i) out[i] -= mean;
  }
  return out;
}

TEST(SyntheticLoads, DriftsToHalfTheBaseDeviationAtItsRate) {
  SyntheticConfig config = still();
  config.drift = 0.02, config.tokens = 1000000, config.steps = 400, config.sigma = 0.6;
  const Loads loads = *generate(config);
  const auto start = log_shares(loads, 0);
  const auto gap = [&](std::int32_t step) {
    const auto now = log_shares(loads, step);
    std::vector<double> d(now.size());
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = now[i] - start[i];
    return moments(d).variance;
  };
  const double stationary = 0.25 * 0.36;  // the start is nearly the base
  for (const std::int32_t steps : {10, 50, 399}) {
    const double expected = stationary * (1 - std::exp(-2 * config.drift * steps));
    EXPECT_NEAR(gap(steps), expected, 0.12 * expected + 0.004) << steps;
  }
}

TEST(SyntheticLoads, BurstsHitTheGivenShareByTheGivenFactor) {
  SyntheticConfig config = still();
  config.burst_probability = 1, config.steps = 1, config.tokens = 1000000, config.sigma = 0,
  config.experts = 1000;
  const Loads loads = *generate(config);
  std::int64_t hot = 0;
  double hot_sum = 0, cold_sum = 0;
  for (const std::int32_t count : loads.counts) {
    const bool is_hot = count > 9000;  // even shares are about 4,900 and e^1.2 of that
    hot += is_hot ? 1 : 0;
    (is_hot ? hot_sum : cold_sum) += count;
  }
  const auto n = static_cast<double>(loads.counts.size());
  EXPECT_NEAR(static_cast<double>(hot) / n, 0.08, 0.015);
  EXPECT_NEAR(hot_sum / static_cast<double>(hot) / (cold_sum / (n - static_cast<double>(hot))), std::exp(1.2),
              0.02);
}

TEST(SyntheticLoads, AnotherDrawHasTheSameRates) {
  SyntheticConfig config;
  config.tokens = 100000, config.steps = 50;
  const Loads first = *generate(config);
  EXPECT_EQ(first.counts, generate(config)->counts);
  config.draw = 1;
  const Loads second = *generate(config);
  EXPECT_NE(first.counts, second.counts);
  double chi = 0;
  for (std::size_t i = 0; i < first.counts.size(); ++i) {
    const double a = first.counts[i], b = second.counts[i];
    chi += (a - b) * (a - b) / std::max(a + b, 1.0);  // variance of the difference is the sum of the rates
  }
  EXPECT_NEAR(chi / static_cast<double>(first.counts.size()), 1.0, 0.05);
}

TEST(SyntheticLoads, RefusesWhatMakesNoSense) {
  SyntheticConfig config;
  config.top_k = 500;
  EXPECT_NE(generate(config).error().message.find("500"), std::string::npos);
  config = {};
  config.steps = 0;
  EXPECT_FALSE(generate(config));
  config = {};
  config.drift = std::nan("");
  EXPECT_FALSE(generate(config));
  config = {};
  EXPECT_FALSE(generate(config)->window(0, 150, 51));
  EXPECT_FALSE(generate(config)->window(1, 0, 10));
}

}  // namespace
}  // namespace trimtab::experts_eval
