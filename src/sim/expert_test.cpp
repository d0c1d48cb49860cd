#include <gtest/gtest.h>

#include <cmath>

#include "sim/expert_group.h"

namespace trimtab::sim {
namespace {

model::Scenario scenario_of(model::ExpertPolicy policy, std::uint32_t ranks, std::int32_t redundant,
                            model::SimulationSpeed speed) {
  model::Scenario scenario;
  scenario.speed = speed;
  scenario.cluster.decode.ranks = scenario.cluster.prefill.ranks = ranks;
  scenario.experts.policy = policy;
  scenario.experts.decode.redundant_slots_per_rank = redundant;
  scenario.experts.decode.interval_steps = policy == model::ExpertPolicy::kDeepInfer ? 800 : 0;
  const auto prepared = prepare_experts(scenario);
  EXPECT_TRUE(prepared.has_value()) << prepared.error().message;
  return scenario;
}

ExpertGroup decode_group(const model::Scenario& scenario) {
  return {scenario, scenario.experts.decode, scenario.cluster.decode.ranks, 7};
}

struct Means {
  double balance = 0, avoidable = 0, stall_ns = 0;
};

/// Over `steps` steps of `tokens`, after `warm`.
Means run(ExpertGroup& group, bool exact, std::uint64_t warm, std::uint64_t steps, double tokens) {
  Means means;
  for (std::uint64_t done = 0; done < warm + steps;) {
    const std::uint64_t span =
        exact ? 1 : std::min(group.steps_to_change(), (done < warm ? warm : warm + steps) - done);
    const ExpertLoad load = exact ? group.step(tokens) : group.expected(tokens);
    if (!exact) group.advance(span, tokens);
    if (done >= warm) {
      const double weight = static_cast<double>(span) / static_cast<double>(steps);
      means.balance += load.balance * weight;
      means.avoidable += load.avoidable * weight;
      means.stall_ns += load.stall_ns * weight;
    }
    done += span;
  }
  return means;
}

class AllPolicies : public ::testing::TestWithParam<model::ExpertPolicy> {};
INSTANTIATE_TEST_SUITE_P(Experts, AllPolicies,
                         ::testing::Values(model::ExpertPolicy::kOff, model::ExpertPolicy::kRedundancy,
                                           model::ExpertPolicy::kDeepInfer, model::ExpertPolicy::kIncremental,
                                           model::ExpertPolicy::kRepair));

TEST_P(AllPolicies, TheClosedFormIsTheMeanOfDraws) {
  for (const std::uint32_t ranks : {8U, 32U}) {
    for (const double tokens : {4.0, 64.0}) {
      Means means[2];
      for (const bool exact : {false, true}) {
        const model::Scenario scenario = scenario_of(
            GetParam(), ranks, 1, exact ? model::SimulationSpeed::kExact : model::SimulationSpeed::kFast);
        ExpertGroup group = decode_group(scenario);
        means[exact ? 1 : 0] = run(group, exact, 512, 1'024, tokens * ranks);
      }
      EXPECT_NEAR(means[0].balance / means[1].balance, 1, 0.01)
          << ranks << " ranks, " << tokens << " tokens: " << means[0].balance << " and " << means[1].balance;
    }
  }
}

}  // namespace
}  // namespace trimtab::sim
