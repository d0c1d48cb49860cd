#include "policy/decode/potential.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trimtab::policy {
namespace {

TEST(Potential, ExpIsExp) {
  for (double x = -40; x <= 12; x += 0.0137) EXPECT_NEAR(exp_exact(x) / std::exp(x), 1, 1e-14) << x;
  EXPECT_EQ(exp_exact(0), 1);
  EXPECT_GT(exp_exact(-1e9), 0);
  EXPECT_LT(exp_exact(-1e9), 1e-300);
}

TEST(Potential, RisesEverywhereAndNeverLessSteeply) {
  for (const double theta : {30.0, 100.0}) {
    double last = phi(-1, theta), slope = 0;
    for (double u = -0.99; u < 20; u += 0.01) {
      const double value = phi(u, theta);
      // Where the exponential is below the last bits of a double it may stand still; above the mean never.
      ASSERT_GE(value, last);
      if (u > 1) {
        ASSERT_GT(value - last, slope * (1 - 1e-9)) << u;
      }
      slope = value - last;
      last = value;
    }
  }
}

TEST(Potential, TheLineBeginsWhereTheExponentialIsTwelve) {
  const double knee = 1 + 12.0 / 30;
  EXPECT_NEAR(phi(knee - 1e-9, 30) / phi(knee + 1e-9, 30), 1, 1e-6);
  EXPECT_NEAR(phi(knee + 2, 30) - phi(knee + 1, 30), std::exp(12), 1e-6);
  EXPECT_NEAR(phi(knee + 200, 30) - phi(knee + 199, 30), std::exp(12), 1e-3);
}

TEST(Potential, AnEvenRankCostsItsWeightsAndATallOneMuchMore) {
  Potential potential;
  potential.mean_kv = 1'000;
  potential.mean_running = 10;
  EXPECT_NEAR(potential.of(10, 1'000, 1), 0.4 / 30 + 0.2 / 100, 1e-15);
  EXPECT_GT(potential.of(10, 1'200, 1), 100 * potential.of(10, 1'000, 1));
  // Half the speed carries half the load at the same level.
  EXPECT_NEAR(potential.of(5, 500, 0.5), potential.of(10, 1'000, 1) / 2, 1e-15);
}

}  // namespace
}  // namespace trimtab::policy
