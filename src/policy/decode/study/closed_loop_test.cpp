#include "policy/decode/study/closed_loop.h"

#include <gtest/gtest.h>

#include <cmath>

#include "policy/decode/study/study_cases.h"

namespace trimtab::policy {
namespace {

/// Percent of the ideal step at 32 x 16, short.
double share(StudyCase study, std::string_view policy) {
  static const std::vector<StudyRequest> trace = synthetic_conversation(6'000, 7);
  study.config.policy = policy;
  study.fills = 9;
  const StudyResult result = run_study(study, trace);
  ::testing::Test::RecordProperty(std::string(policy), std::to_string(result.share));
  return 100 * result.share;
}

/// By hand: two ranks, one request each of constant size, ends never within the run's steps.
TEST(ClosedLoop, AnEvenGroupIsIdealAndAnUnevenOneCostsWhatTheFormulaSays) {
  StudyCase study;
  study.ranks = 4;
  study.batch = 2;
  study.config.policy = "waterline";
  const std::vector<StudyRequest> even = {{1'000, 50}};
  EXPECT_NEAR(run_study(study, even).share, 1, 1e-9);
  // Half of the ranks at 0.7 of the speed, round robin: both peaks are 2 / 0.7 of 8 / 3.4.
  study.slow_half = true;
  study.config.policy = "round_robin";
  EXPECT_NEAR(run_study(study, even).share, 1 / (0.2 + 0.2 + 0.6 * (2 / 0.7) / (8 / 3.4)), 1e-9);
  // Padded to multiples of 8: dispatch and MoE take four times as long.
  study.slow_half = false;
  study.graph_step = 8;
  EXPECT_NEAR(run_study(study, even).share, 1 / (0.2 + 0.4 + 0.4 * 4), 1e-9);
}

TEST(ClosedLoop, PlacesThatStayEmptyAreCharged) {
  // Room for one request a rank of the two that the shape counts: half the tokens, and each step saves only
  // the half of MoE, of attention and of dispatch.
  StudyCase study;
  study.ranks = 4;
  study.batch = 2;
  study.config.policy = "total_requests";
  study.kv_cap_permille = 640;
  study.fills = 6;
  study.fills_dropped = 1;
  const std::vector<StudyRequest> even = {{10'000, 50}};
  const StudyResult result = run_study(study, even);
  EXPECT_NEAR(result.live, 0.5, 1e-9);
  EXPECT_NEAR(result.share, 0.5 / (0.2 + 0.8 * 0.5), 1e-9);
}

TEST(ClosedLoop, TheSameSeedGivesTheSameRun) {
  const auto trace = synthetic_conversation(500, 3);
  StudyCase study;
  study.fills = 4;
  study.config.policy = "waterline_hold";
  study.config.window = 16;
  const StudyResult first = run_study(study, trace), second = run_study(study, trace);
  EXPECT_EQ(first.share, second.share);
  EXPECT_EQ(first.steps, second.steps);
}

TEST(ClosedLoop, TheOrderOfThePoliciesIsTheStudys) {
  const double round_robin = share({}, "round_robin"), dualpath = share({}, "dualpath"),
               waterline = share({}, "waterline"), hazard = share({}, "waterline_hazard"),
               hold = share({}, "waterline_hold");
  EXPECT_LT(round_robin + 8, dualpath);
  EXPECT_NEAR(dualpath, 89, 2);
  EXPECT_LT(dualpath + 0.5, waterline);
  EXPECT_LT(waterline + 0.5, hazard);
  EXPECT_LT(hazard + 0.5, hold);
  EXPECT_GT(hold, 92.5);
}

TEST(ClosedLoop, OwnStreamEndsMakeStaleReportsHarmless) {
  StudyCase reports;
  reports.report_every = 32;
  EXPECT_NEAR(share(reports, "waterline_hazard"), share({}, "waterline_hazard"), 0.3);
  reports.sees_streams = false;
  EXPECT_LT(share(reports, "waterline_hazard") + 1, share({}, "waterline_hazard"));
}

TEST(ClosedLoop, MovesWithinTheirBudgetPay) {
  StudyCase moving;
  moving.config.moves_permille = 150;
  moving.config.window = 32;
  EXPECT_GT(share(moving, "least_potential"), 94.5);
  moving.config.policy = "least_potential";
  moving.fills = 9;
  const StudyResult result = run_study(moving, synthetic_conversation(6'000, 7));
  EXPECT_GT(result.moves_per_request, 0.05);
  EXPECT_LE(result.moves_per_request, 0.155);
  EXPECT_LE(result.overtaken_max, 4 * 32);
}

TEST(ClosedLoop, CeilingsReachTheGraphSizeAndHoldWithinTheirBound) {
  StudyCase padded;
  padded.graph_step = padded.config.graph_step = 8;
  const double hold = share(padded, "waterline_hold");
  EXPECT_GT(hold, 91);
  EXPECT_LT(share(padded, "dualpath"), 81);
  padded.config.policy = "waterline_hold";
  padded.fills = 9;
  EXPECT_LE(run_study(padded, synthetic_conversation(6'000, 7)).hold_steps_max, 31);
}

TEST(ClosedLoop, LeasesHelpIndependentPlacersOverManyRanks) {
  StudyCase four;
  four.ranks = 144;
  four.config.policy = "waterline_hazard";
  four.placers = 4;
  four.report_every = 1;
  four.report_age = 3;
  four.fills = 5;
  const auto trace = synthetic_conversation(6'000, 7);
  const double without = run_study(four, trace).share;
  four.config.placers = 4;
  EXPECT_GT(run_study(four, trace).share, without + 0.02);
}

TEST(ClosedLoop, ItsSyntheticLengthsHaveTheRecordedMoments) {
  const auto trace = synthetic_conversation(20'000, 1);
  double prompts = 0, outputs = 0;
  for (const StudyRequest& request : trace) {
    prompts += static_cast<double>(request.prompt_tokens);
    outputs += static_cast<double>(request.output_tokens);
  }
  EXPECT_NEAR(prompts / 20'000, 12'035, 500);
  EXPECT_NEAR(outputs / 20'000, 342.6, 12);
}

}  // namespace
}  // namespace trimtab::policy
