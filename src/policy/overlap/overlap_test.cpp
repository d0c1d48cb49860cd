#include "policy/overlap/overlap.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace trimtab::policy {
namespace {

double rounded(double value) { return std::round(value * 100) / 100; }

// System facts, section 8: all 16 figures.
TEST(Overlap, TheTable) {
  struct Row {
    std::int64_t batch;
    long serial_us, overlapped_us;
    double speed_up, ratio;
  };
  for (const Row& row : {Row{32, 252, 236, 1.07, 2.12}, Row{64, 408, 281, 1.45, 1.26},
                         Row{128, 732, 445, 1.65, 0.83}, Row{256, 1409, 890, 1.58, 0.65}}) {
    const OverlapTimes times = overlap_times({}, row.batch);
    EXPECT_EQ(std::lround(times.serial_s * 1e6), row.serial_us) << row.batch;
    EXPECT_EQ(std::lround(times.overlapped_s * 1e6), row.overlapped_us) << row.batch;
    EXPECT_EQ(rounded(times.speed_up), row.speed_up) << row.batch;
    EXPECT_EQ(rounded(times.compute_to_communication), row.ratio) << row.batch;
  }
}

TEST(Overlap, PaysOnlyWhereTravelHidesBehindComputing) {
  EXPECT_TRUE(worth({}, 64).worth);
  EXPECT_NEAR(worth({}, 64).gain_s * 1e6, 127, 1);
  // A small batch reads the weights twice to hide almost nothing.
  const OverlapDecision small = worth({}, 8);
  EXPECT_FALSE(small.worth);
  EXPECT_LT(small.gain_s, 0);
  EXPECT_GT(small.extra_weights_s * 1e6, 90);  // the weights of one layer once more
  // Nothing to hide on a very fast network; one request cannot be split.
  OverlapModel fast;
  fast.network_bytes_per_s = 1e15;
  EXPECT_FALSE(worth(fast, 128).worth);
  EXPECT_FALSE(worth({}, 1).worth);
  EXPECT_EQ(describe(worth({}, 64)).substr(0, 59),
            "overlap: 408 us a layer serial, 281 us overlapped (1.45 x),");
}

RC_GTEST_PROP(Overlap, NeverBeatsTheLongerOfTheTwoSides, ()) {
  const auto batch = *rc::gen::inRange<std::int64_t>(1, 2'000);
  const LayerTimes whole = layer_times({}, static_cast<double>(batch));
  const OverlapTimes times = overlap_times({}, batch);
  // Halving can only add work, so the sides of the whole batch are a lower bound; and at best half is saved.
  RC_ASSERT(times.overlapped_s >= std::max(whole.compute(), whole.communication()) * (1 - 1e-12));
  RC_ASSERT(times.speed_up <= 2 + 1e-9);
  RC_ASSERT(worth({}, batch).worth == (batch >= 2 && times.overlapped_s < times.serial_s));
}

RC_GTEST_PROP(Overlap, WhereReadingWeightsBoundsComputingItPaysIfTravelIsLonger, ()) {
  OverlapModel model;
  model.kv_bytes_per_token = 0;
  model.attention_flops_per_token = 0;
  model.moe_flops_per_s = 1e30;  // computing is reading weights: C(b/2) = C(b)
  model.network_bytes_per_s = *rc::gen::inRange(10, 900) * 1e8;
  const auto batch = *rc::gen::inRange<std::int64_t>(2, 500);
  const LayerTimes whole = layer_times(model, static_cast<double>(batch));
  RC_PRE(std::abs(whole.communication() - whole.compute()) > 1e-9);
  RC_ASSERT(worth(model, batch).worth == (whole.communication() > whole.compute()));
}

}  // namespace
}  // namespace trimtab::policy
