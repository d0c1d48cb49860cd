#include "sim/step_overlap.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

TEST(StepOverlap, HidesTheShorterOfComputingAndNetwork) {
  // 10 ms of computing, 6 ms of network, 1 ms of weights that the second micro-batch reads again, 0.4 ms of
  // launches: 10 + 2 + 0.4 instead of 10 + 1 + 6.
  const OverlapParts parts{6e6, 4e6, 0, 1e6, 6e6};
  EXPECT_NEAR(overlap_saving(parts, 64, 40, policy::kDecodeCosts), 17e6 - 12.4e6, 1);
  // Experts that take the time of their weights take it twice.
  const OverlapParts least{6e6, 4e6, 4e6, 0, 6e6};
  EXPECT_NEAR(overlap_saving(least, 64, 40, policy::kDecodeCosts), 16e6 - 14.4e6, 1);
  // Computing that lends processors to the network is slower meanwhile.
  EXPECT_NEAR(overlap_saving(parts, 64, 40, {10e-6, 0.1, 0}), 17e6 - 12.4e6 - 0.6e6, 1);
}

TEST(StepOverlap, OneBatchWhereTwoCostMore) {
  EXPECT_EQ(overlap_saving({6e6, 4e6, 0, 8e6, 6e6}, 64, 40, policy::kDecodeCosts), 0) << "weights";
  EXPECT_EQ(overlap_saving({6e6, 4e6, 0, 0, 0.3e6}, 64, 40, policy::kDecodeCosts), 0) << "launches";
  EXPECT_EQ(overlap_saving({6e6, 4e6, 0, 0, 6e6}, 1, 40, policy::kDecodeCosts), 0) << "one request";
  EXPECT_EQ(overlap_saving({}, 64, 40, policy::kDecodeCosts), 0);
}

RC_GTEST_PROP(StepOverlap, NeverLongerAndNeverBelowTheLongerStream,
              (const std::vector<std::uint32_t>& numbers)) {
  RC_PRE(numbers.size() >= 6);
  const auto ns = [&](std::size_t i) { return static_cast<double>(numbers[i] % 20'000'000); };
  OverlapParts parts{ns(0), ns(1), 0, ns(3), ns(4)};
  parts.experts_least = std::min(ns(2), parts.experts);
  const double batch = numbers[5] % 300;
  StepTimes times;
  times.ideal = parts.attention + parts.experts + parts.weights + parts.network;
  times.expert_moves = 5e6;
  const double before = times.sum();
  save(times, overlap_saving(parts, batch, 40, policy::kDecodeCosts));
  RC_ASSERT(times.sum() <= before);
  RC_ASSERT(times.expert_moves == 5e6);
  const double computing = parts.attention + parts.experts + parts.weights;
  RC_ASSERT(times.ideal >= std::max(computing, parts.network) - 1);
}

model::Scenario fleet(SimulationSpeed speed, bool overlap) {
  model::Scenario scenario = testing::small_fleet();
  scenario.speed = speed;
  scenario.profile.decode_step = {Nanos{20'000'000}, 21.0, 1'000e3, 70e3, {}};
  scenario.experts.memory_bytes_per_s = 200e12;  // small experts: what the split reads again is little
  scenario.overlap.enabled = overlap;
  scenario.overlap.prefill_network_ns_per_token = 30e3;
  return scenario;
}

class OverlapInSimulations : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Speeds, OverlapInSimulations,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast));

TEST_P(OverlapInSimulations, MakesStepsShorterAndTheirPartsAddUp) {
  const model::Trace trace = testing::arrivals(300, 4.0, 3);
  const Result without = testing::simulate(fleet(GetParam(), false), trace);
  const Result with = testing::simulate(fleet(GetParam(), true), trace);
  EXPECT_EQ(with.finished, 300U);
  EXPECT_LT(with.all.tpot.mean_s(), without.all.tpot.mean_s());
  EXPECT_LT(with.prefill_times.sum(), 0.95 * without.prefill_times.sum());
  const double span = base::to_seconds(with.span);
  EXPECT_NEAR(with.decode_times.sum() * 1e-9, with.decode_busy * span * 2, 1e-3 * span);
  EXPECT_NEAR(with.prefill_times.sum() * 1e-9, with.prefill_busy * span * 2, 1e-3 * span);
}

TEST_P(OverlapInSimulations, ChangesNothingWhereItNeverPays) {
  const model::Trace trace = testing::arrivals(100, 3.0, 3);
  model::Scenario with = fleet(GetParam(), true), without = fleet(GetParam(), false);
  for (model::Scenario* scenario : {&with, &without}) {
    scenario->profile.decode_step.dispatch_ns_per_request = 1e3;
    scenario->overlap.prefill_network_ns_per_token = 0;
  }
  EXPECT_EQ(testing::simulate(with, trace).event_hash, testing::simulate(without, trace).event_hash);
}

}  // namespace
}  // namespace trimtab::sim
