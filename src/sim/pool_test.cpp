#include "sim/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/hash.h"
#include "base/prng.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

TEST(Eviction, UnknownNamesOfferTheNearest) {
  EXPECT_THAT(make_eviction("s3_fifi", 10).error().message, ::testing::HasSubstr("s3_fifo"));
}

/// Hits of a popular tenth of the blocks while long prompts that nobody asks for again pass through.
std::int64_t hits_beside_a_scan(std::string_view name) {
  constexpr std::int64_t kCapacity = 100;
  PrefixCache cache(kCapacity, make_eviction(name, kCapacity).value());
  base::Prng prng(5);
  std::int64_t hits = 0;
  std::uint64_t scan = 1'000'000;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t popular = prng.below(60);
    const Nanos now{i * 1'000'000'000LL};
    hits += cache.use(popular, now) ? 1 : 0;
    cache.put(popular, now);
    for (int j = 0; j < 2; ++j) cache.put(++scan, now);
    EXPECT_LE(cache.blocks(), kCapacity);
  }
  return hits;
}

TEST(Eviction, TwoQueuesResistAScanThatPushesTheUsedOut) {
  const std::int64_t fifo = hits_beside_a_scan("fifo"), lru = hits_beside_a_scan("lru");
  EXPECT_GT(lru, fifo);
  EXPECT_GT(hits_beside_a_scan("s3_fifo"), lru * 5 / 4);
  EXPECT_GT(hits_beside_a_scan("hit_density"), lru * 5 / 4);
}

/// Prompts of ten blocks; those with brief answers are asked
/// again a minute later, those with long ones never. Share of the blocks asked again that are hit.
double share_hit_by_answers(std::uint32_t nodes, bool told) {
  constexpr std::int64_t kSecond = 1'000'000'000, kComputing = kSecond / 4;
  model::Scenario scenario = testing::small_fleet();
  scenario.storage.nodes = nodes;
  scenario.storage.eviction = "hit_density";
  scenario.pool.capacity_blocks = 120;
  Pool pool = Pool::make(scenario, 128).value();
  std::int64_t hits = 0, asked = 0;
  const auto request = [&](std::uint64_t conversation, bool again, bool brief, std::int64_t now) {
    const std::vector<model::BlockRun> runs{{1'000 + conversation * 10, 10}};
    const std::int64_t matched = pool.match(runs, Nanos{now}).tokens / 128;
    if (again && now > 10'000 * kSecond) {
      asked += 10;
      hits += matched;
    }
    pool.store(runs, 10, Nanos{now + kComputing});
    if (told)
      pool.answered(runs, 10, {matched, Nanos{now}, Nanos{now + kComputing}}, brief ? 20 : 600,
                    Nanos{now + 2 * kComputing});
  };
  for (std::int64_t step = 0; step < 5'000; ++step) {
    const auto conversation = static_cast<std::uint64_t>(step);
    const bool brief = base::mix(5, conversation) % 3 == 0;
    request(conversation, false, brief, step * 4 * kSecond);
    if (step >= 15 && base::mix(5, conversation - 15) % 3 == 0)
      request(conversation - 15, true, false, step * 4 * kSecond + 3 * kSecond);
  }
  return static_cast<double>(hits) / static_cast<double>(asked);
}

TEST(Pool, TheLengthOfAnAnswerReachesTheOrderOfLeaving) {
  const double untold = share_hit_by_answers(0, false), told = share_hit_by_answers(0, true);
  EXPECT_LT(untold, 0.8);
  EXPECT_GT(told, 0.9);
}

model::Scenario of_nodes(std::uint32_t nodes) {
  model::Scenario scenario = testing::small_fleet();
  scenario.storage.nodes = nodes;
  return scenario;
}

const std::vector<model::BlockRun> kRuns{{1'000, 400}};

TEST(Pool, OneNodeLessCutsHitsAtItsFirstBlockAndItComesBack) {
  Pool pool = Pool::make(of_nodes(4), 128).value();
  pool.store(kRuns, 400, Nanos{1});
  EXPECT_EQ(pool.match(kRuns, Nanos{2}).tokens, 400 * 128);
  const std::uint64_t epoch = pool.epoch();
  pool.lose(2, Nanos{5});
  EXPECT_NE(pool.epoch(), epoch);
  const Pool::Matched less = pool.match(kRuns, Nanos{2});
  EXPECT_LT(less.tokens, 40 * 128);
  EXPECT_EQ(less.tokens + less.unreachable, 400 * 128);
  EXPECT_EQ(pool.readable({kRuns, 1, Nanos{}}, 400 * 128), less.tokens);
  pool.restore(2, false, Nanos{6});
  EXPECT_EQ(pool.match(kRuns, Nanos{2}).tokens, 400 * 128);
  pool.lose(2, Nanos{9});
  pool.restore(2, true, Nanos{10});
  const Pool::Matched emptied = pool.match(kRuns, Nanos{2});
  EXPECT_EQ(emptied.tokens, less.tokens) << "its blocks are gone";
  EXPECT_EQ(emptied.unreachable, 0);
}

TEST(Pool, ReadsQueueAtNodesAndAtTheEnginesMachine) {
  model::Scenario scenario = of_nodes(4);
  scenario.pool.read_bytes_per_s = 1e15;
  scenario.pool.layerwise = false;
  scenario.storage.read_bytes_per_s = 1e9;
  Pool pool = Pool::make(scenario, 128).value();
  const double bytes = 400.0 * 114'048;
  const Pool::Read first = pool.read(0, {kRuns, 1, {}}, 400 * 128, Nanos{});
  const double seconds = base::to_seconds(first.all);
  EXPECT_GE(seconds, bytes / 4e9 * 0.999) << "four nodes in parallel, the fullest last";
  EXPECT_LT(seconds, bytes / 4e9 * 1.5);
  const Pool::Read second = pool.read(1, {kRuns, 1, {}}, 400 * 128, Nanos{});
  EXPECT_NEAR(base::to_seconds(second.all), 2 * seconds, 1e-6)
      << "another engine's reads wait for the same nodes";
  double read = 0;
  for (const double node : pool.outcome().node_bytes) read += node;
  EXPECT_NEAR(read, 2 * bytes, 1.0);
  scenario.storage.nodes = 0;
  scenario.pool.read_bytes_per_s = 1e9;
  Pool alone = Pool::make(scenario, 128).value();
  EXPECT_NEAR(base::to_seconds(alone.read(0, {kRuns, 1, {}}, 400 * 128, Nanos{}).all), bytes / 1e9, 1e-6);
  EXPECT_NEAR(base::to_seconds(alone.read(1, {kRuns, 1, {}}, 400 * 128, Nanos{}).all), bytes / 1e9, 1e-6)
      << "each engine's machine reads for itself";
}

TEST(Pool, CapacityIsSharedOutToTheNodes) {
  model::Scenario scenario = of_nodes(4);
  scenario.pool.capacity_blocks = 200;
  Pool pool = Pool::make(scenario, 128).value();
  pool.store(kRuns, 400, Nanos{1});
  EXPECT_EQ(pool.evicted(), 200);
}

TEST(PoolInTheLoop, StorageThatIsSlowOrGoneCostsTimeNotTokens) {
  const model::Trace trace = testing::arrivals(300, 2.0, 7);
  const Result without = testing::simulate(of_nodes(0), trace);
  model::Scenario slow = of_nodes(2);
  slow.storage.read_bytes_per_s = 2e6;
  const Result delayed = testing::simulate(slow, trace);
  EXPECT_EQ(delayed.finished, 300U);
  EXPECT_GT(delayed.all.ttft.mean_s(), 1.1 * without.all.ttft.mean_s());
  model::Scenario gone = of_nodes(2);
  gone.faults.faults.push_back(testing::fault_at(model::FaultKind::kStorageNode, 0, -1));
  const Result recomputed = testing::simulate(gone, trace);
  EXPECT_EQ(recomputed.finished, 300U);
  EXPECT_EQ(recomputed.hit_tokens, 0);
  EXPECT_GT(recomputed.computed_tokens, without.computed_tokens);
}

// Traces of 512-token blocks have an id for the block in which a prompt ends; no prefill has stored it whole.
TEST(PoolInTheLoop, WhatComesBackFindsTheBlockInWhichItsPromptEnds) {
  model::Trace trace = testing::arrivals(120, 20.0, 3, 500);
  trace.block_tokens = 512;
  for (model::TraceRequest& request : trace.requests) {
    request.prompt_tokens = std::min<std::int64_t>(request.prompt_tokens, 2'000);
    request.output_tokens *= 5;
    trace.runs[request.runs_begin].count = static_cast<std::uint32_t>((request.prompt_tokens + 511) / 512);
  }
  model::Scenario scenario = of_nodes(3);
  scenario.cluster.decode.groups = 1;
  scenario.cluster.decode.kv_blocks = 60;
  scenario.cluster.decode.headroom_tokens = 128;
  const Result result = testing::simulate(scenario, trace);
  EXPECT_GT(result.preemptions, 10U);
  EXPECT_EQ(result.faults.fallback_tokens, 0) << "no node is down, so nothing is computed again";
}

}  // namespace
}  // namespace trimtab::sim
