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
  // A repaired map is fit to the noise of the counts that it saw, which the fast form draws afresh.
  const double tolerance = GetParam() == model::ExpertPolicy::kRepair ? 0.015 : 0.01;
  for (const std::uint32_t ranks : {8U, 32U}) {
    for (const double tokens : {4.0, 64.0}) {
      Means means[2];
      for (const bool exact : {false, true}) {
        const model::Scenario scenario = scenario_of(
            GetParam(), ranks, 1, exact ? model::SimulationSpeed::kExact : model::SimulationSpeed::kFast);
        ExpertGroup group = decode_group(scenario);
        means[exact ? 1 : 0] = run(group, exact, 512, 1'024, tokens * ranks);
      }
      EXPECT_NEAR(means[0].balance / means[1].balance, 1, tolerance)
          << ranks << " ranks, " << tokens << " tokens: " << means[0].balance << " and " << means[1].balance;
    }
  }
}

/// Hot experts, drifting fast: what a planner in the loop is for.
model::Scenario skewed(model::ExpertPolicy policy, model::SimulationSpeed speed) {
  model::Scenario scenario = scenario_of(policy, 8, policy == model::ExpertPolicy::kOff ? 0 : 1, speed);
  scenario.experts.decode.drift_steps = 5'000;
  return scenario;
}

TEST(ExpertsInTheLoop, PlannersLowerTheImbalanceAndMovesAreCharged) {
  for (const bool exact : {false, true}) {
    const auto speed = exact ? model::SimulationSpeed::kExact : model::SimulationSpeed::kFast;
    const auto mean = [&](model::ExpertPolicy policy) {
      const model::Scenario scenario = skewed(policy, speed);
      ExpertGroup group = decode_group(scenario);
      const Means means = run(group, exact, 1'000, 1'600, 512);
      if (policy == model::ExpertPolicy::kDeepInfer) {
        EXPECT_GT(means.stall_ns, 0);
      }
      if (policy == model::ExpertPolicy::kOff) {
        EXPECT_EQ(means.stall_ns, 0);
      }
      return std::pair(means, group.received());
    };
    const auto [off, none] = mean(model::ExpertPolicy::kOff);
    EXPECT_EQ(none, 0);
    EXPECT_GT(off.balance, 1.15);
    EXPECT_GT(off.avoidable, 0.1) << "nobody plans: nearly all of it could be avoided";
    const auto [deepinfer, all] = mean(model::ExpertPolicy::kDeepInfer);
    EXPECT_LT(deepinfer.balance, off.balance - 0.05);
    EXPECT_LT(deepinfer.avoidable, 0.02);
    EXPECT_GT(all, 0);
    for (const auto policy : {model::ExpertPolicy::kIncremental, model::ExpertPolicy::kRepair}) {
      const auto [ours, few] = mean(policy);
      EXPECT_LT(ours.balance, off.balance - 0.05);
      EXPECT_LT(ours.balance, deepinfer.balance + 0.005);
      EXPECT_GT(few, 0);
      EXPECT_LT(few, all) << "plans start from the map in force";
    }
  }
}

TEST(ExpertsInTheLoop, TwiceTheSame) {
  for (const auto policy : {model::ExpertPolicy::kDeepInfer, model::ExpertPolicy::kRepair}) {
    const model::Scenario scenario = skewed(policy, model::SimulationSpeed::kExact);
    ExpertGroup one = decode_group(scenario), other = decode_group(scenario);
    const Means first = run(one, true, 0, 300, 512), second = run(other, true, 0, 300, 512);
    EXPECT_EQ(first.balance, second.balance);
    EXPECT_EQ(first.stall_ns, second.stall_ns);
  }
}

TEST(ExpertsInTheLoop, AMoveTakesTheTimeOfItsCopies) {
  model::Scenario scenario = skewed(model::ExpertPolicy::kDeepInfer, model::SimulationSpeed::kFast);
  ExpertGroup group = decode_group(scenario);
  group.advance(200, 512);  // the first plan, a quarter of the interval
  const double stall = group.expected(512).stall_ns;
  EXPECT_GT(stall, 0);
  EXPECT_EQ(group.steps_to_change(), 1U) << "the published rule moves all at once";
  const double copy_ns = scenario.experts.bytes_per_copy / scenario.experts.move_bytes_per_s * 1e9;
  const double copies = stall / copy_ns / scenario.experts.model_layers;
  EXPECT_GT(copies, 1) << "of a layer, into the rank that receives most";
  EXPECT_LE(copies, 49);
  group.advance(1, 512);
  EXPECT_EQ(group.expected(512).stall_ns, 0);
}

TEST(ExpertsInTheLoop, RedundantCopiesAreReadEveryStep) {
  const model::Scenario off = skewed(model::ExpertPolicy::kOff, model::SimulationSpeed::kFast);
  EXPECT_EQ(decode_group(off).copies_ns(), 0);
  const model::Scenario one = skewed(model::ExpertPolicy::kRedundancy, model::SimulationSpeed::kFast);
  EXPECT_NEAR(decode_group(one).copies_ns(), 40 * 18.8e6 / 3.35e12 * 1e9, 1);
}

TEST(ExpertsInTheLoop, RefusesShapesThatCannotBe) {
  model::Scenario scenario;
  scenario.experts.policy = model::ExpertPolicy::kOff;
  scenario.experts.experts = 4;
  EXPECT_FALSE(prepare_experts(scenario).has_value()) << "a token chooses six of four experts";
  scenario.experts.per_token = 2;
  scenario.experts.decode.redundant_slots_per_rank = 4;  // more slots than distinct copies
  scenario.experts.policy = model::ExpertPolicy::kRedundancy;
  EXPECT_FALSE(prepare_experts(scenario).has_value());
  scenario.experts.decode.redundant_slots_per_rank = 0;
  scenario.experts.prefill.redundant_slots_per_rank = 0;
  EXPECT_TRUE(prepare_experts(scenario).has_value());
}

}  // namespace
}  // namespace trimtab::sim
