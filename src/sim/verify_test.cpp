#include <gtest/gtest.h>

#include "sim/verify_study.h"

namespace trimtab::sim {
namespace {

using model::VerifyPolicy;

TEST(DraftTable, IsMonotoneAndEndsAtAllDrafts) {
  const model::VerifyModel model;
  const DraftTable table(model);
  EXPECT_EQ(table.tokens(0), 1.0);
  EXPECT_NEAR(table.tokens(model.drafts), 3.29, 0.06) << "the published accepted length";
  for (double drafts = 0; drafts < model.drafts; drafts += 0.25) {
    EXPECT_LT(table.tokens(drafts), table.tokens(drafts + 0.25));
    EXPECT_GE(table.threshold(drafts), table.threshold(drafts + 0.25));
    const double gain = table.tokens(drafts + 0.25) - table.tokens(drafts);
    if (drafts + 0.5 <= model.drafts) {
      EXPECT_GE(gain, table.tokens(drafts + 0.5) - table.tokens(drafts + 0.25)) << "likeliest first";
    }
  }
  EXPECT_LT(table.tokens_of(0, 0), table.tokens_of(2, 0));
  EXPECT_LT(table.tokens_of(1, 0.5), table.tokens_of(1, 0.1));
  EXPECT_NEAR(table.variance(model.drafts), 0, 1e-9) << "everyone verifies all";
}

/// Sixteen ranks: the group is too small to show the published figures, not to order the rules.
study::Outcome outcome(VerifyPolicy policy, SimulationSpeed speed, std::int64_t requests) {
  model::Scenario scenario = study::scenario_of(policy, speed);
  scenario.cluster.decode.ranks = 16;
  study::Load load;
  load.requests_per_rank = requests;
  load.warm_steps = 150;
  load.steps = 250;
  return study::World(scenario, load).run();
}

TEST(VerifyInTheLoop, OursIsAheadOfThePublishedRuleAndNeverBehindFixed) {
  const double fixed16 = outcome(VerifyPolicy::kFixed, SimulationSpeed::kExact, 16).tokens_per_s;
  EXPECT_GT(outcome(VerifyPolicy::kGroup, SimulationSpeed::kExact, 16).tokens_per_s, 0.998 * fixed16);
  EXPECT_LT(outcome(VerifyPolicy::kPublished, SimulationSpeed::kExact, 16).tokens_per_s, fixed16);
  const double fixed60 = outcome(VerifyPolicy::kFixed, SimulationSpeed::kExact, 60).tokens_per_s;
  const double published60 = outcome(VerifyPolicy::kPublished, SimulationSpeed::kExact, 60).tokens_per_s;
  const double ours60 = outcome(VerifyPolicy::kGroup, SimulationSpeed::kExact, 60).tokens_per_s;
  EXPECT_GT(published60, fixed60 * 1.02);
  EXPECT_GT(ours60, published60 + 0.01 * fixed60);
  const double fixed96 = outcome(VerifyPolicy::kFixed, SimulationSpeed::kExact, 96).tokens_per_s;
  const double published96 = outcome(VerifyPolicy::kPublished, SimulationSpeed::kExact, 96).tokens_per_s;
  EXPECT_GT(published96, fixed96 * 1.05);
  EXPECT_GT(outcome(VerifyPolicy::kGroup, SimulationSpeed::kExact, 96).tokens_per_s,
            published96 + 0.01 * fixed96);
}

TEST(VerifyInTheLoop, TheClosedFormIsNearTheDraws) {
  for (const auto& [policy, tolerance] :
       {std::pair{VerifyPolicy::kFixed, 0.01}, std::pair{VerifyPolicy::kPublished, 0.025},
        std::pair{VerifyPolicy::kGroup, 0.02}}) {
    const study::Outcome exact = outcome(policy, SimulationSpeed::kExact, 40);
    const study::Outcome fast = outcome(policy, SimulationSpeed::kFast, 40);
    EXPECT_NEAR(fast.tokens_per_s / exact.tokens_per_s, 1, tolerance) << static_cast<int>(policy);
    EXPECT_NEAR(fast.step_ms / exact.step_ms, 1, tolerance) << static_cast<int>(policy);
  }
}

TEST(VerifyInTheLoop, DraftsDoNotDependOnTheRule) {
  model::Scenario fixed = study::scenario_of(VerifyPolicy::kFixed, SimulationSpeed::kExact);
  model::Scenario ours = study::scenario_of(VerifyPolicy::kGroup, SimulationSpeed::kExact);
  VerifyGroup one(fixed, 1), other(ours, 1);
  const std::vector<std::vector<std::uint32_t>> drafts = {{one.add(7), one.add(8)}};
  other.add(7);
  other.add(8);
  const std::vector<double> kv = {1'000};
  std::int64_t all = 0, some = 0;
  for (int step = 0; step < 200; ++step) {
    EXPECT_EQ(one.choose(drafts, kv)[0], 12.0) << "two requests with five drafts each";
    other.choose(drafts, kv);
    for (const std::uint32_t draft : drafts[0]) {
      const std::int64_t most = one.take(draft), taken = other.take(draft);
      EXPECT_LE(taken, most) << "fewer rows accept a prefix of what more rows accept";
      all += most;
      some += taken;
    }
  }
  EXPECT_GT(some, all / 2);
}

}  // namespace
}  // namespace trimtab::sim
