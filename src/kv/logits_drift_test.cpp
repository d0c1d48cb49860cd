#include "kv/logits_drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kv/testing/window_model.h"

namespace trimtab::kv {
namespace {

TEST(LogitsDrift, IsInUnitsOfTheSpread) {
  const std::vector<float> truth = {1, 3, 1, 3};  // mean 2, standard deviation 1
  const std::vector<float> other = {1, 3, 3, 3};
  const auto drift = logits_drift(truth, other);
  ASSERT_TRUE(drift);
  EXPECT_DOUBLE_EQ(drift->relative, 1);
  EXPECT_DOUBLE_EQ(drift->largest, 2);
  EXPECT_TRUE(drift->same_token);
  // Scaled and moved, the same.
  std::vector<float> far = truth, far_other = other;
  for (std::vector<float>* row : {&far, &far_other})
    for (float& logit : *row) logit = logit * 8 - 100;
  EXPECT_DOUBLE_EQ(logits_drift(far, far_other)->relative, 1);
  EXPECT_DOUBLE_EQ(logits_drift(far, far_other)->largest, 2);
}

TEST(LogitsDrift, EqualRowsDoNotDriftAndAnotherFirstTokenIsSeen) {
  const std::vector<float> truth = {1, 5, 2};
  const auto none = logits_drift(truth, truth);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->relative, 0);
  EXPECT_EQ(none->largest, 0);
  EXPECT_TRUE(none->same_token);
  EXPECT_FALSE(logits_drift(truth, std::vector<float>{1, 2, 5})->same_token);
}

TEST(LogitsDrift, RowsThatCannotBeComparedGiveNoFigure) {
  const std::vector<float> row = {1, 2};
  EXPECT_FALSE(logits_drift({}, {}));
  EXPECT_FALSE(logits_drift(row, std::vector<float>{1, 2, 3}));
  EXPECT_FALSE(logits_drift(std::vector<float>{2, 2}, row)) << "no spread to measure by";
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_FALSE(logits_drift(row, std::vector<float>{1, bad}));
    EXPECT_FALSE(logits_drift(std::vector<float>{1, bad}, row));
  }
}

// What a served system reports is the figure of the table in docs/kv.md, of one token.
TEST(LogitsDrift, IsWhatTheStudyOfWindowModelsMeasures) {
  const testing::WindowStudy study(4, 6, 1, 1);
  const auto rows = study.recomputed_from(study.end() - 128);
  const auto measured = testing::measure_drift(study.truth(), rows);
  const auto drift = logits_drift(study.truth().front(), rows.front());
  ASSERT_TRUE(drift);
  EXPECT_GT(drift->relative, 0);
  EXPECT_NEAR(drift->relative, measured.relative, 1e-12);
  EXPECT_EQ(drift->same_token, measured.same_first == 1);
}

}  // namespace
}  // namespace trimtab::kv
