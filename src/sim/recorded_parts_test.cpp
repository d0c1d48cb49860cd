// What a recording and a result say of faults, storage nodes, encoders and experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "sim/recorder.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using model::FaultKind;

double sum(const Series& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

struct Watched {
  Result result;
  Recording recording;
};

Watched watch(const model::Scenario& scenario, const model::Trace& trace) {
  Recorder recorder;
  const auto simulation = Simulation::make(scenario, Workload::make(trace, {}).value()).value();
  simulation->record(recorder);
  Watched out{simulation->run(), {}};
  out.recording = recorder.take();
  return out;
}

class RecordedParts : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Speeds, RecordedParts,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast));

TEST_P(RecordedParts, ARequestThatIsAskedAgainArrivesOnce) {
  model::Scenario scenario = testing::small_fleet();
  scenario.speed = GetParam();
  scenario.entrypoints.count = 2;
  for (const double at_s : {10.0, 20.0, 30.0})
    scenario.faults.faults.push_back(testing::fault_at(FaultKind::kEntrypoint, at_s, 2));
  model::Trace trace = testing::arrivals(300, 8.0, 3);
  trace.requests[5].prompt_tokens = 1 << 21;  // beyond the model's context
  const Watched got = watch(scenario, trace);
  ASSERT_GT(got.result.faults.requests_moved, 0U);
  ASSERT_GT(got.result.faults.streams_broken, 0U);
  EXPECT_EQ(sum(got.recording.arrivals), 300);
  EXPECT_EQ(sum(got.recording.finished), static_cast<double>(got.result.finished));
  EXPECT_EQ(sum(got.recording.failed), static_cast<double>(got.result.failed));
  EXPECT_GE(sum(got.recording.retried), static_cast<double>(got.result.faults.requests_moved));
  EXPECT_LT(got.result.matched_tokens, got.result.prompt_tokens - (1 << 21) + 1)
      << "the refused prompt never matched";
  std::int64_t matched = 0;
  for (const RequestTimes& one : got.result.requests) matched += one.prompt;
  EXPECT_EQ(got.result.matched_tokens, matched);
  ASSERT_EQ(got.recording.faults.size(), 6U) << "three times two entrypoints";
  EXPECT_EQ(got.recording.faults[2].kind, FaultKind::kEntrypoint);
  EXPECT_EQ(got.recording.faults[2].from, Nanos{20'000'000'000});
  EXPECT_EQ(got.recording.faults[2].until, Nanos{22'000'000'000});
}

TEST_P(RecordedParts, AGroupThatDiesLosesTheStepUnderWay) {
  model::Scenario scenario = testing::small_fleet();
  scenario.speed = GetParam();
  model::Fault fault = testing::fault_at(FaultKind::kEngine, 10, 5);
  fault.start_up = Nanos{3'000'000'000};
  for (const model::Role role : {model::Role::kPrefill, model::Role::kDecode}) {
    fault.role = role;
    fault.targets = {0};
    scenario.faults.faults.push_back(fault);
  }
  const Watched got = watch(scenario, testing::arrivals(300, 8.0, 3));
  EXPECT_EQ(got.result.faults.engines_lost, 2U);
  EXPECT_EQ(got.result.faults.steps_lost, 2U) << "both were busy";
  EXPECT_GE(got.result.faults.steps_lost_span.value, 0);
  EXPECT_LT(got.result.faults.steps_lost_span, Nanos{2'000'000'000});
  EXPECT_GT(sum(got.recording.retried), 0);
  ASSERT_EQ(got.recording.faults.size(), 2U);
  EXPECT_EQ(got.recording.faults[1].role, model::Role::kDecode);
  EXPECT_EQ(got.recording.faults[1].until, Nanos{18'000'000'000}) << "until it serves again";
}

TEST_P(RecordedParts, NodesSayWhatTheyReadAndFound) {
  model::Scenario scenario = testing::small_fleet();
  scenario.speed = GetParam();
  scenario.storage.nodes = 4;
  scenario.storage.read_bytes_per_s = 0.5e9;
  const Watched got = watch(scenario, testing::arrivals(300, 6.0, 3));
  const StorageOutcome& storage = got.result.storage;
  ASSERT_EQ(storage.nodes.size(), 4U);
  for (std::size_t n = 0; n < 4; ++n) {
    const StorageNode& node = storage.nodes[n];
    EXPECT_GT(node.reads, 0U);
    EXPECT_EQ(node.delay.count(), node.reads);
    EXPECT_GT(node.found, 0U);
    EXPECT_LT(node.found, node.asked) << "each prefix ends at a block that is missing, or the prompt's end";
    // No read is quicker than its bytes.
    EXPECT_GE(node.delay.mean_s() * static_cast<double>(node.reads), storage.node_bytes[n] / 0.5e9 * 0.99);
  }
}

TEST_P(RecordedParts, ExpertsBeforeAndAfterArePlacementsOfTheSameLoad) {
  model::Scenario scenario = testing::small_fleet();
  scenario.speed = GetParam();
  scenario.profile.decode_step = {base::Nanos{15'000'000}, 21.0, 70e3, 70e3, {}};
  scenario.experts.policy = model::ExpertPolicy::kRepair;
  scenario.experts.layers = 2;
  scenario.experts.decode = {1, 200, 50, 32, 500};
  const Watched got = watch(scenario, testing::arrivals(150, 4.0, 3));
  const ExpertPicture& decode = got.recording.decode_experts;
  EXPECT_EQ(decode.ranks, 4U);
  EXPECT_EQ(got.recording.prefill_experts.ranks, 2U);
  EXPECT_GT(decode.plans, 0U);
  EXPECT_NE(decode.before, decode.after);
  const std::size_t experts = decode.popularity.size();
  double busiest[2] = {};
  for (const bool after : {false, true}) {
    const std::vector<double>& placed = after ? decode.after : decode.before;
    ASSERT_EQ(placed.size(), 4 * experts);
    for (std::size_t e = 0; e < experts; ++e) {
      double all = 0;
      for (std::size_t rank = 0; rank < 4; ++rank) all += placed[rank * experts + e];
      EXPECT_NEAR(all, decode.popularity[e], 1e-12) << "copies of " << e << " share all of it";
    }
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto row = placed.begin() + static_cast<std::ptrdiff_t>(rank * experts);
      busiest[after ? 1 : 0] = std::max(
          busiest[after ? 1 : 0], std::accumulate(row, row + static_cast<std::ptrdiff_t>(experts), 0.0));
    }
  }
  EXPECT_LE(busiest[1], busiest[0] + 1e-9);
  EXPECT_EQ(watch(testing::small_fleet(), testing::arrivals(20, 4.0, 3)).recording.decode_experts.ranks, 0U);
}

}  // namespace
}  // namespace trimtab::sim
