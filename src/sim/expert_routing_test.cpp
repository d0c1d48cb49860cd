// Recorded routing as the experts' load.
#include "io/expert_routing.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "sim/expert_group.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using model::ExpertPolicy;

/// Two texts of `windows` windows each, which choose among the first and the last half of 16 experts; the
/// window's number is the expert that it likes best.
model::ExpertPopularity recorded(std::int32_t windows) {
  model::ExpertPopularity out{2 * windows, 2, 16, {}, {}, 64};
  for (std::int32_t text = 0; text < 2; ++text) {
    for (std::int32_t window = 0; window < windows; ++window) {
      out.texts.push_back(text);
      for (std::int32_t layer = 0; layer < 2; ++layer) {
        for (std::int32_t e = 0; e < 16; ++e) {
          const bool liked = e % 8 == window % 8;
          out.shares.push_back(e / 8 == text ? (liked ? 0.3 : 0.1) : 0);
        }
      }
    }
  }
  return out;
}

model::Scenario scenario_of(ExpertPolicy policy, model::ExpertPopularity popularity) {
  model::Scenario scenario;
  scenario.cluster.decode.ranks = scenario.cluster.prefill.ranks = 4;
  scenario.experts.policy = policy;
  scenario.experts.layers = 2;
  scenario.experts.per_token = 2;
  scenario.experts.popularity = std::move(popularity);
  return scenario;
}

TEST(ExpertRouting, WindowsUnderWayAreDrawnFromTheTextsByTheirWeight) {
  model::Scenario scenario = scenario_of(ExpertPolicy::kOff, recorded(10));
  scenario.experts.routing_windows = 50;
  scenario.experts.decode.epoch_steps = 16;
  scenario.experts.decode.drift_steps = 0;  // texts keep their weights; windows come and go
  ASSERT_TRUE(prepare_experts(scenario).has_value());
  EXPECT_EQ(scenario.experts.experts, 16) << "as recorded, whatever the profile says";
  TextMix mix(scenario.experts, scenario.experts.decode, 1, 2);
  double first_text = 0, changed = 0;
  const int epochs = 4'000;
  std::vector<double> before(mix.weights().begin(), mix.weights().end());
  for (int epoch = 0; epoch < epochs; ++epoch) {
    mix.advance();
    const auto weights = mix.weights();
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1.0, 1e-9);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      first_text += i < 10 ? weights[i] / epochs : 0;
      changed += std::max(weights[i] - before[i], 0.0) / epochs;
    }
    before.assign(weights.begin(), weights.end());
  }
  EXPECT_GT(first_text, 0.02);
  EXPECT_LT(first_text, 0.98);
  // A quarter of the windows of 64 tokens ends in 16 steps; some are followed by the same.
  EXPECT_GT(changed, 0.1);
  EXPECT_LT(changed, 0.25);
  std::vector<double> shares(16);
  mix.shares(scenario.experts.popularity, 1, shares);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-9);
  double half = 0;
  for (std::size_t e = 0; e < 8; ++e) half += shares[e];
  double weight = 0;
  for (std::size_t i = 0; i < 10; ++i) weight += mix.weights()[i];
  EXPECT_NEAR(half, weight, 1e-9) << "a text's tokens go to its own experts";
}

TEST(ExpertRouting, WholeWindowsAreOthersInEveryEpoch) {
  model::Scenario scenario = scenario_of(ExpertPolicy::kOff, recorded(1'000));
  scenario.experts.routing_windows = 20;
  ASSERT_TRUE(prepare_experts(scenario).has_value());
  ASSERT_TRUE(scenario.experts.prefill.whole_windows);
  TextMix mix(scenario.experts, scenario.experts.prefill, 1, 2);
  double kept = 0;
  for (int epoch = 0; epoch < 100; ++epoch) {
    const std::vector<double> before(mix.weights().begin(), mix.weights().end());
    mix.advance();
    for (std::size_t i = 0; i < before.size(); ++i) kept += std::min(before[i], mix.weights()[i]) / 100;
  }
  EXPECT_LT(kept, 0.05) << "of 2,000 windows a group of 20 meets few again";
}

TEST(ExpertRouting, WhatCannotBeIsSaid) {
  const auto error = [](model::Scenario scenario) { return prepare_experts(scenario).error().message; };
  model::Scenario scenario = scenario_of(ExpertPolicy::kOff, recorded(4));
  scenario.experts.experts = 32;
  EXPECT_NE(error(scenario).find("recorded routing of 16 experts for a model of 32"), std::string::npos);
  scenario = scenario_of(ExpertPolicy::kOff, recorded(4));
  scenario.experts.popularity.texts.back() = 5;
  EXPECT_NE(error(scenario).find("text 2 of 6 has no recorded window"), std::string::npos);
  scenario.experts.popularity.texts.pop_back();
  EXPECT_NE(error(scenario).find("8 recorded windows, 7 of which have a text"), std::string::npos);
  scenario = scenario_of(ExpertPolicy::kOff, {});
  scenario.experts.routing = "loads.npz";
  EXPECT_NE(error(scenario).find("routing loads.npz was not read"), std::string::npos);
}

class RecordedRouting : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Speeds, RecordedRouting,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast));

TEST_P(RecordedRouting, IsWhatPlansAreMadeFrom) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) GTEST_SKIP() << "set TRIMTAB_DATA to the folder of recorded traces and routing";
  const auto routing = io::read_expert_routing(std::string(data) + "/experts/derived_moe_routing.npz", 2, 0);
  ASSERT_TRUE(routing.has_value()) << routing.error().message;
  const model::Trace trace = testing::arrivals(150, 4.0, 3);
  const auto run = [&](ExpertPolicy policy) {
    model::Scenario scenario = testing::small_fleet();
    scenario.speed = GetParam();
    scenario.profile.decode_step = {base::Nanos{15'000'000}, 21.0, 70e3, 70e3, {}};
    scenario.experts.policy = policy;
    scenario.experts.layers = 2;
    scenario.experts.per_token = routing->per_token;
    scenario.experts.popularity = routing->popularity;
    return testing::simulate(scenario, trace);
  };
  const Result off = run(ExpertPolicy::kOff), repair = run(ExpertPolicy::kRepair);
  EXPECT_EQ(off.finished, 150U);
  EXPECT_EQ(run(ExpertPolicy::kRepair).event_hash, repair.event_hash);
  // Loads of four to eight times the mean expert leave much to balance.
  const auto lost = [](const StepTimes& times) {
    return (times.expert_imbalance + times.expert_drift) / times.sum();
  };
  // With a few rows a rank, most of what decode loses is the noise of counts, which no plan sees.
  EXPECT_GT(lost(off.decode_times), 1.05 * lost(repair.decode_times));
  EXPECT_GT(lost(off.prefill_times), 1.5 * lost(repair.prefill_times));
}

}  // namespace
}  // namespace trimtab::sim
