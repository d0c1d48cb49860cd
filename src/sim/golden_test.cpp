// Small exact runs whose every event is pinned. A change of any of these numbers is a change of what the
// simulator or the production decisions do: if it is meant, the new numbers go here with the reason in the
// commit. The hash also pins that other machines and compilers give the same run.
#include <gtest/gtest.h>

#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

struct Golden {
  const char* name;
  std::uint64_t hash, events;
  std::int64_t hit_tokens, ttft_mean_us, ttft_p99_us, tpot_mean_ns;
};

void expect(const Result& result, const Golden& golden) {
  EXPECT_EQ(result.finished, result.submitted) << golden.name;
  EXPECT_EQ(result.event_hash, golden.hash) << golden.name;
  EXPECT_EQ(result.events, golden.events) << golden.name;
  EXPECT_EQ(result.hit_tokens, golden.hit_tokens) << golden.name;
  EXPECT_EQ(static_cast<std::int64_t>(result.all.ttft.mean_s() * 1e6), golden.ttft_mean_us) << golden.name;
  // A bucket's bounds are powers of two, which C libraries round in their own ways.
  EXPECT_NEAR(result.all.ttft.quantile_s(0.99) * 1e6, static_cast<double>(golden.ttft_p99_us), 2.0)
      << golden.name;
  EXPECT_EQ(static_cast<std::int64_t>(result.all.tpot.mean_s() * 1e9), golden.tpot_mean_ns) << golden.name;
}

/// Whole numbers only: no logarithm of another C library gives another trace.
model::Trace requests(std::int64_t count, std::int64_t gap_ms, std::int64_t prompts, std::int64_t outputs,
                      std::uint64_t seed) {
  model::Trace trace;
  trace.name = "golden";
  trace.block_tokens = 128;
  base::Prng prng(seed);
  Nanos at;
  const auto up_to = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(most)));
  };
  for (std::int64_t i = 0; i < count; ++i) {
    at += Nanos{up_to(2 * gap_ms) * 1'000'000};
    model::TraceRequest request;
    request.arrival = at;
    request.prompt_tokens = up_to(prompts) * (i % 10 == 0 ? 8 : 1);
    request.output_tokens = up_to(outputs);
    request.conversation = static_cast<std::uint32_t>(i);
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back(
        {(1 + prng.below(10)) << 32U, static_cast<std::uint32_t>(request.prompt_tokens / 128)});
    trace.requests.push_back(request);
  }
  return trace;
}

model::Scenario exact() {
  model::Scenario scenario = testing::small_fleet();
  scenario.cluster.decode.policy = "waterline";
  scenario.cluster.prefill.order = "fifo";
  scenario.cluster.prefill.assignment = "pull";
  scenario.speed = SimulationSpeed::kExact;
  return scenario;
}

TEST(Golden, APlainRun) {
  expect(testing::simulate(exact(), requests(60, 300, 6'000, 400, 1)),
         {"plain", 9989741779537401082ULL, 3'047, 105'344, 340'204, 5'521'408, 15'542'971});
}

TEST(Golden, DraftsAndAFullDecodeRank) {
  model::Scenario scenario = exact();
  scenario.decode.tokens_per_step = 2.6;
  scenario.cluster.decode.groups = 1;
  scenario.cluster.decode.headroom_tokens = 128;
  scenario.cluster.decode.kv_blocks = 50;
  const Result result = testing::simulate(scenario, requests(60, 40, 700, 3'000, 2));
  EXPECT_GT(result.preemptions, 0U);
  expect(result, {"drafts", 17445883658764572227ULL, 4'168, 9'856, 16'651'953, 28'246'016, 8'296'696});
}

TEST(Golden, FaultsStorageNodesPlacersAndLateReports) {
  model::Scenario scenario = exact();
  scenario.storage.nodes = 3;
  scenario.entrypoints.count = 2;
  scenario.reports.delay = Nanos{200'000'000};
  model::Fault rank = testing::fault_at(model::FaultKind::kRank, 5, 2);
  rank.role = model::Role::kDecode;
  rank.targets = {1};
  rank.ranks = {3};
  rank.start_up = Nanos{1'000'000'000};
  model::Fault engine = testing::fault_at(model::FaultKind::kEngine, 9, 3);
  engine.targets = {0};
  model::Fault node = testing::fault_at(model::FaultKind::kStorageNode, 4, 6);
  node.targets = {1};
  scenario.faults.faults = {rank, engine, node};
  expect(testing::simulate(scenario, requests(60, 300, 6'000, 400, 1)),
         {"faults", 11428118534217711025ULL, 10'800, 77'952, 452'613, 5'914'624, 16'123'223});
}

}  // namespace
}  // namespace trimtab::sim
