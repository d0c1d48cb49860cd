// Moves of running requests in the simulator: the cluster machine's own, paid for by what they take (a lost
// step, a read from the pool, a short prefill, a hand-over).
#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"
#include "sim/simulation.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

constexpr std::int64_t kRequests = 500;

model::Scenario scenario(SimulationSpeed speed, std::int64_t moves_per_1000) {
  model::Scenario made = testing::small_fleet(2, 1);
  made.speed = speed;
  made.report_interval = Nanos{200'000'000};
  model::ClusterConfig& cluster = made.cluster;
  cluster.decode.ranks = 8;
  cluster.decode.policy = "round_robin";  // leaves something to repair
  cluster.decode.moves_per_1000 = moves_per_1000;
  cluster.decode.move_interval_ms = 100;
  return made;
}

model::Trace trace() {
  model::Trace made;
  made.block_tokens = 128;
  base::Prng prng(5);
  double at = 0;
  for (std::int64_t i = 0; i < kRequests; ++i) {
    at += prng.exponential(0.25);
    model::TraceRequest request;
    request.arrival = Nanos{static_cast<std::int64_t>(at * 1e9)};
    request.prompt_tokens =
        1 + static_cast<std::int64_t>(std::min(3'000 * std::exp(prng.normal()), 60'000.0));
    request.output_tokens = 1 + static_cast<std::int64_t>(prng.exponential(300));
    request.conversation = static_cast<std::uint32_t>(i);
    request.runs_begin = static_cast<std::uint32_t>(made.runs.size());
    request.runs_count = 1;
    made.runs.push_back(
        {static_cast<std::uint64_t>(i + 1) << 32U, static_cast<std::uint32_t>(request.prompt_tokens / 128)});
    made.requests.push_back(request);
  }
  made.conversations = static_cast<std::uint32_t>(kRequests);
  return made;
}

Result run(const model::Scenario& of) { return testing::simulate(of, trace()); }

class MovesAtBothSpeeds : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Simulation, MovesAtBothSpeeds,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast));

TEST_P(MovesAtBothSpeeds, EveryTokenIsCountedOnceAndAttentionWaitsLess) {
  const Result without = run(scenario(GetParam(), 0)), with = run(scenario(GetParam(), 300));
  std::int64_t outputs = 0;
  for (const model::TraceRequest& request : trace().requests) outputs += request.output_tokens;
  for (const Result* result : {&without, &with}) {
    EXPECT_EQ(result->finished, static_cast<std::uint64_t>(kRequests));
    EXPECT_EQ(result->failed + result->unfinished, 0U);
    EXPECT_EQ(result->output_tokens, outputs);
  }
  EXPECT_EQ(without.moves, 0U);
  EXPECT_GT(with.moves, 20U);
  EXPECT_LE(with.moves, static_cast<std::uint64_t>(kRequests * 3 / 10));
  // Each comes back through a prefill of less than two blocks.
  EXPECT_GT(with.computed_tokens, without.computed_tokens);
  EXPECT_LE(with.computed_tokens,
            without.computed_tokens + static_cast<std::int64_t>(with.moves) * 2 * model::kBlockTokens);
  EXPECT_LT(with.decode_times.attention_wait / with.decode_times.ideal,
            0.9 * without.decode_times.attention_wait / without.decode_times.ideal);
  EXPECT_EQ(run(scenario(GetParam(), 300)).event_hash, with.event_hash) << "twice the same";
}

TEST_P(MovesAtBothSpeeds, StopWhenThePoolKeepsNothing) {
  model::Scenario off = scenario(GetParam(), 300);
  off.pool.enabled = false;
  const Result result = run(off);
  EXPECT_EQ(result.finished, static_cast<std::uint64_t>(kRequests));
  EXPECT_GT(result.moves, 0U);
  EXPECT_LT(result.moves, 20U) << "each costs a whole prefill: one a minute is tried, and those under way";
}

}  // namespace
}  // namespace trimtab::sim
