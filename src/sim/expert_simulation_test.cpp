// Experts and drafts in whole simulations: what they cost adds up, and the same run is the same run.
#include <gtest/gtest.h>

#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using model::ExpertPolicy;
using model::VerifyPolicy;

/// Re-placement that is due often enough for a short run, skewed experts, and graphs that pad.
model::Scenario fleet(SimulationSpeed speed, ExpertPolicy experts, VerifyPolicy verify) {
  model::Scenario scenario = testing::small_fleet();
  scenario.speed = speed;
  scenario.profile.decode_step = {base::Nanos{15'000'000}, 21.0, 70e3, 70e3, {}};
  for (std::int64_t rows = 4; rows <= 512; rows += 4)
    scenario.profile.decode_step.graph_sizes.push_back(rows);
  scenario.experts.policy = experts;
  scenario.experts.layers = 2;
  scenario.experts.decode = {1, 200, 50, 32, 500};
  scenario.experts.prefill = {1, 20, 10, 8, 100};
  scenario.verify.policy = verify;
  return scenario;
}

class ExpertsInSimulations : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Speeds, ExpertsInSimulations,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast),
                         [](const auto& which) {
                           return which.param == SimulationSpeed::kExact ? "Exact" : "Fast";
                         });

TEST_P(ExpertsInSimulations, TwiceTheSameWithEveryPolicy) {
  const model::Trace trace = testing::arrivals(120, 3.0, 9);
  std::vector<std::uint64_t> hashes;
  for (const auto& [experts, verify] : {std::pair{ExpertPolicy::kConstant, VerifyPolicy::kOff},
                                        std::pair{ExpertPolicy::kOff, VerifyPolicy::kFixed},
                                        std::pair{ExpertPolicy::kDeepInfer, VerifyPolicy::kPublished},
                                        std::pair{ExpertPolicy::kIncremental, VerifyPolicy::kGroup},
                                        std::pair{ExpertPolicy::kRepair, VerifyPolicy::kGroup}}) {
    const model::Scenario scenario = fleet(GetParam(), experts, verify);
    const Result once = testing::simulate(scenario, trace), again = testing::simulate(scenario, trace);
    EXPECT_EQ(once.finished, 120U);
    EXPECT_EQ(once.event_hash, again.event_hash);
    EXPECT_EQ(once.events, again.events);
    EXPECT_EQ(once.decode_times.sum(), again.decode_times.sum());
    EXPECT_EQ(once.all.tpot.quantile_s(0.99), again.all.tpot.quantile_s(0.99));
    for (const std::uint64_t other : hashes) EXPECT_NE(once.event_hash, other) << "the policy acts";
    hashes.push_back(once.event_hash);
    model::Scenario reseeded = scenario;
    ++reseeded.seed;
    if (experts != ExpertPolicy::kConstant) {
      EXPECT_NE(testing::simulate(reseeded, trace).event_hash, once.event_hash) << "drawn from the seed";
    }
  }
}

TEST_P(ExpertsInSimulations, LossesAddUpToTheBusyTime) {
  const model::Scenario scenario = fleet(GetParam(), ExpertPolicy::kDeepInfer, VerifyPolicy::kPublished);
  const Result result = testing::simulate(scenario, testing::arrivals(250, 3.0, 5));
  const double span = base::to_seconds(result.span);
  EXPECT_NEAR(result.decode_times.sum() * 1e-9, result.decode_busy * span * 2, 1e-3 * span);
  EXPECT_NEAR(result.prefill_times.sum() * 1e-9, result.prefill_busy * span * 2, 1e-3 * span);
  for (const StepTimes* times : {&result.decode_times, &result.prefill_times}) {
    EXPECT_GT(times->ideal, 0);
    EXPECT_GT(times->expert_imbalance, 0);
    EXPECT_GT(times->expert_drift, 0) << "the mix forgets itself between plans";
    EXPECT_GT(times->expert_moves, 0);
    EXPECT_LT(times->share(), 1);
  }
  EXPECT_GT(result.decode_times.padding, 0);
  // One copy a rank of every layer is read in every step.
  const double copy_ns = scenario.experts.bytes_per_copy * 40 / scenario.experts.memory_bytes_per_s * 1e9;
  EXPECT_NEAR(result.decode_times.expert_copies / (copy_ns * static_cast<double>(result.decode_steps)), 1,
              0.01);
}

TEST_P(ExpertsInSimulations, WhatIsOffCostsNothing) {
  const model::Trace trace = testing::arrivals(80, 3.0, 2);
  const Result off = testing::simulate(fleet(GetParam(), ExpertPolicy::kOff, VerifyPolicy::kOff), trace);
  EXPECT_EQ(off.decode_times.expert_moves, 0);
  EXPECT_EQ(off.decode_times.expert_copies, 0);
  EXPECT_GT(off.decode_times.expert_drift, 0) << "a plan would have avoided it";
  const Result constant =
      testing::simulate(fleet(GetParam(), ExpertPolicy::kConstant, VerifyPolicy::kOff), trace);
  for (const double part : {constant.decode_times.expert_imbalance, constant.decode_times.expert_drift,
                            constant.decode_times.expert_moves, constant.decode_times.expert_copies})
    EXPECT_EQ(part, 0);
}

}  // namespace
}  // namespace trimtab::sim
