#include "policy/speculate/study.h"

#include <gtest/gtest.h>

namespace trimtab::policy::study {
namespace {

/// All ranks of the group; the figures of the document are of 400 steps.
Comparison compare(std::int64_t requests_per_rank) {
  Model model;
  model.requests_per_rank = requests_per_rank;
  model.steps = 120;
  const Comparison result = run(model);
  for (const auto& [name, gain] :
       {std::pair{"published", result.published_gain()}, std::pair{"ours", result.ours_gain()},
        std::pair{"bound", result.bound_gain()}})
    ::testing::Test::RecordProperty(name + std::to_string(requests_per_rank), std::to_string(100 * gain));
  return result;
}

TEST(SpeculateStudy, SmallBatches) {
  const Comparison at16 = compare(16);
  EXPECT_NEAR(at16.published_gain(), -0.015, 0.004) << "the production system's loss";
  EXPECT_GT(at16.ours_gain(), -0.002);
  EXPECT_NEAR(at16.fixed.accepted_length, 3.29, 0.05);
  const Comparison at4 = compare(4);
  EXPECT_GT(at4.ours_gain(), -0.002);
}

TEST(SpeculateStudy, SixtyRequestsARank) {
  const Comparison at60 = compare(60);
  EXPECT_GT(at60.published_gain(), 0.04);
  EXPECT_LT(at60.published_gain(), 0.07);
  EXPECT_GT(at60.ours_gain(), at60.published_gain() + 0.01);
  EXPECT_LE(at60.ours_gain(), at60.bound_gain() + 0.001);
}

TEST(SpeculateStudy, NinetySixRequestsARank) {
  const Comparison at96 = compare(96);
  EXPECT_NEAR(at96.published_gain(), 0.11, 0.01);
  EXPECT_GT(at96.ours_gain(), at96.published_gain() + 0.01);
  EXPECT_LE(at96.ours_gain(), at96.bound_gain() + 0.001);
}

}  // namespace
}  // namespace trimtab::policy::study
