#include "policy/speculate/curve.h"

#include <gtest/gtest.h>

#include "policy/speculate/feedback.h"

namespace trimtab::policy {
namespace {

TEST(StepCurve, CapturedSizesAreThePublishedOnes) {
  EXPECT_EQ(captured_graph_sizes(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(captured_graph_sizes(7), (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(captured_graph_sizes(30), (std::vector<std::int64_t>{1, 2, 4, 8, 16, 24}));
  // 256 requests with 5 drafts each.
  EXPECT_EQ(captured_graph_sizes(1536).size(), 3U + 192U);
  EXPECT_EQ(captured_graph_sizes(1536).back(), 1536);
}

TEST(StepCurve, FindsTheSmallestGraphThatHolds) {
  const auto curve = StepCurve::make({{1, Nanos{5}}, {4, Nanos{6}}, {8, Nanos{4}}});
  ASSERT_TRUE(curve);
  const std::size_t expected[] = {0, 0, 1, 1, 1, 2, 2, 2, 2, 3};
  for (std::int64_t rows = 0; rows < 10; ++rows) EXPECT_EQ(curve->index_for(rows), expected[rows]) << rows;
  EXPECT_EQ(curve->index_for(1'000'000), 3U);
}

TEST(StepCurve, RefusesWhatIsNoCurveAndNamesThePoint) {
  const auto message = [](std::vector<CurvePoint> points) {
    const auto curve = StepCurve::make(std::move(points));
    return curve ? std::string("accepted") : curve.error().message;
  };
  EXPECT_NE(message({}).find("without points"), std::string::npos);
  EXPECT_NE(message({{0, Nanos{1}}}).find("graph of 0 rows"), std::string::npos);
  EXPECT_NE(message({{8, Nanos{1}}, {8, Nanos{2}}}).find("graph of 8 rows after one of 8"),
            std::string::npos);
  EXPECT_NE(message({{8, Nanos{1}}, {4, Nanos{2}}}).find("4 rows after one of 8"), std::string::npos);
  EXPECT_NE(message({{8, Nanos{0}}}).find("0 ns for the graph of 8 rows"), std::string::npos);
  EXPECT_NE(message({{1LL << 40, Nanos{1}}}).find("1048576 are possible"), std::string::npos);
}

class Feedback : public ::testing::Test {
 protected:
  Feedback() : curve(*StepCurve::make({{8, Nanos{1000}}, {16, Nanos{1200}}, {24, Nanos{1400}}})) {}
  StepCurve curve;
};

TEST_F(Feedback, SlopeIsTheMedianOverSizesOfMediansPerSize) {
  StepFeedback feedback(curve);
  EXPECT_EQ(feedback.correction(4).row_ns, 0) << "a cold start trusts the curve";
  // Size 8: excess 80 ns = 10 a row, one outlier; size 16: 320 = 20 a row; size 24: 1,200 = 50 a row.
  for (int i = 0; i < 10; ++i) feedback.observe_forward(8, Nanos{i == 3 ? 900'000 : 1080});
  EXPECT_EQ(feedback.correction(4).row_ns, 10);
  for (int i = 0; i < 9; ++i) feedback.observe_forward(16, Nanos{1520});
  EXPECT_EQ(feedback.correction(4).row_ns, 10) << "nine samples of a size are too few";
  feedback.observe_forward(16, Nanos{1520});
  EXPECT_EQ(feedback.correction(4).row_ns, 15) << "two sizes: the mean of the middle two";
  for (int i = 0; i < 10; ++i) feedback.observe_forward(24, Nanos{2600});
  EXPECT_EQ(feedback.correction(4).row_ns, 20);
  feedback.observe_forward(12, Nanos{1'000'000});
  EXPECT_EQ(feedback.correction(4).row_ns, 20) << "no graph of 12 rows was captured";
}

TEST_F(Feedback, FasterThanTheCurveIsNoSlope) {
  StepFeedback feedback(curve);
  for (int i = 0; i < 20; ++i) feedback.observe_forward(8, Nanos{500});
  EXPECT_EQ(feedback.correction(1).row_ns, 0);
}

TEST_F(Feedback, OnlyTheLastForwardsCount) {
  StepFeedback feedback(curve, {.forwards_window = 30, .forwards_per_size = 10});
  for (int i = 0; i < 30; ++i) feedback.observe_forward(8, Nanos{1800});
  EXPECT_EQ(feedback.correction(1).row_ns, 100);
  for (int i = 0; i < 16; ++i) feedback.observe_forward(8, Nanos{1080});
  EXPECT_EQ(feedback.correction(1).row_ns, 10) << "16 new of 30";
  for (int i = 0; i < 21; ++i) feedback.observe_forward(16, Nanos{1520});
  EXPECT_EQ(feedback.correction(1).row_ns, 20) << "nine of size 8 are left";
}

TEST_F(Feedback, SamplerOfThisBatchSizeElseOfAllElseNothing) {
  StepFeedback feedback(curve);
  for (int i = 0; i < 4; ++i) feedback.observe_sampler(10, Nanos{100});
  EXPECT_EQ(feedback.correction(10).sampler_ns, 0) << "four are too few";
  feedback.observe_sampler(10, Nanos{100});
  EXPECT_EQ(feedback.correction(10).sampler_ns, 100);
  EXPECT_EQ(feedback.correction(11).sampler_ns, 100) << "of all";
  for (int i = 0; i < 9; ++i) feedback.observe_sampler(20, Nanos{300});
  EXPECT_EQ(feedback.correction(10).sampler_ns, 100);
  EXPECT_EQ(feedback.correction(20).sampler_ns, 300);
  EXPECT_EQ(feedback.correction(11).sampler_ns, 300) << "the last nine of all";
  for (int i = 0; i < 5; ++i) feedback.observe_sampler(10, Nanos{500});
  EXPECT_EQ(feedback.correction(10).sampler_ns, 500) << "five of the last nine";
}

}  // namespace
}  // namespace trimtab::policy
