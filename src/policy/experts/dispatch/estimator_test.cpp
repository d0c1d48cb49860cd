#include "policy/experts/dispatch/estimator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "policy/experts/dispatch/made_layers.h"

namespace trimtab::experts {
namespace {

using Counts = std::vector<std::int64_t>;

TEST(Estimator, LastAndMeanByHand) {
  LoadEstimator last(2, {.kind = Estimate::kLast});
  LoadEstimator mean(2, {.kind = Estimate::kMean, .memory_steps = 2});
  for (const Counts& counts : {Counts{4, 8}, Counts{6, 0}, Counts{10, 4}}) {
    last.observe(counts);
    mean.observe(counts);
  }
  EXPECT_EQ(last.estimate()[0], 10);
  EXPECT_EQ(last.estimate()[1], 4);
  EXPECT_EQ(mean.estimate()[0], 7.5);  // (4 + 6) / 2, then half way to 10
  EXPECT_EQ(mean.estimate()[1], 4);
}

TEST(Estimator, AdaptiveForgetsAfterAJumpAndAfterTwoSmallerOnes) {
  LoadEstimator jump(1, {});
  for (int i = 0; i < 20; ++i) jump.observe(Counts{100});
  EXPECT_EQ(jump.restarts(), 0);
  jump.observe(Counts{200});
  EXPECT_EQ(jump.restarts(), 1);
  EXPECT_EQ(jump.estimate()[0], 200);

  LoadEstimator drift(1, {});
  for (int i = 0; i < 20; ++i) drift.observe(Counts{100});
  drift.observe(Counts{125});  // 2.4 deviations: kept in the mean
  EXPECT_EQ(drift.restarts(), 0);
  EXPECT_LT(drift.estimate()[0], 110);
  drift.observe(Counts{125});  // a second on the same side
  EXPECT_EQ(drift.restarts(), 1);
  EXPECT_EQ(drift.estimate()[0], 125);

  LoadEstimator swing(1, {});
  for (int i = 0; i < 20; ++i) swing.observe(Counts{100});
  swing.observe(Counts{122});
  swing.observe(Counts{80});  // as far, on the other side
  EXPECT_EQ(swing.restarts(), 0);
}

// What the adaptive mean is for: nearly the error of a long mean while rates stand, nearly the speed of the
// last step when they jump.
TEST(Estimator, AdaptiveBeatsBothOthersOnRatesThatJump) {
  double errors[3] = {};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    base::Prng prng(seed);
    std::vector<double> rates = made::popularity(prng, 64, 0.8, 6400);
    LoadEstimator last(64, {.kind = Estimate::kLast}), mean(64, {.kind = Estimate::kMean}), adaptive(64, {});
    for (int step = 0; step < 300; ++step) {
      if (step % 40 == 0) {
        for (double& rate : rates) rate *= prng.below(12) == 0 ? 3 : prng.below(12) == 0 ? 1.0 / 3 : 1;
      }
      LoadEstimator* all[] = {&last, &mean, &adaptive};
      for (int i = 0; i < 3; ++i) {
        for (std::size_t e = 0; e < rates.size() && step > 0; ++e) {
          errors[i] += std::abs(all[i]->estimate()[e] - rates[e]);
        }
      }
      const Counts counts = made::counts(prng, rates);
      for (LoadEstimator* one : all) one->observe(counts);
    }
  }
  EXPECT_LT(errors[2], 0.75 * errors[0]);
  EXPECT_LT(errors[2], 0.95 * errors[1]);
}

TEST(Estimator, IdleExpertsAndFirstTokens) {
  LoadEstimator adaptive(2, {});
  for (int i = 0; i < 10; ++i) adaptive.observe(Counts{0, i % 2});
  EXPECT_EQ(adaptive.estimate()[0], 0);
  EXPECT_GT(adaptive.estimate()[1], 0.3);
  EXPECT_LT(adaptive.estimate()[1], 0.7);
  EXPECT_EQ(adaptive.restarts(), 0);
}

}  // namespace
}  // namespace trimtab::experts
