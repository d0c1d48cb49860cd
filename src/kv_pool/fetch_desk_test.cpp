#include "kv_pool/fetch_desk.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "kv_pool/pool_harness.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;
using test::Pool;

/// A pool with its desk, and what each client's ring would have said.
struct Desk {
  template <class... Args>
  explicit Desk(std::uint32_t held_per_client, std::uint32_t held_in_all, std::uint32_t layers,
                Args&&... args)
      : pool(std::forward<Args>(args)...), desk(*pool.store, limits(held_per_client, held_in_all, layers)) {}
  static FetchDesk::Limits limits(std::uint32_t per_client, std::uint32_t in_all, std::uint32_t layers) {
    FetchDesk::Limits limits;
    limits.slots = {per_client, in_all, base::Nanos{1'000'000'000}};
    limits.layers = layers;
    limits.blocks_per_client = 100;
    return limits;
  }
  bool fetch(ClientId client, PlanId plan, const std::vector<std::uint64_t>& blocks,
             base::Nanos deadline = base::kForever, std::int32_t priority = 0) {
    protocol::Fetch message;
    message.plan = plan;
    for (const std::uint64_t n : blocks) message.keys.push_back(key(n));
    message.deadline_ns = deadline.value;
    message.priority = priority;
    wanted[{client, plan}] = blocks;
    return desk.fetch(client, message, pool.clock.now());
  }
  /// One turn of the loader.
  void turn() {
    pool.wait();
    desk.advance(pool.store->take_answers().leases, pool.clock.now());
    for (const FetchDesk::Post& post : desk.take_posts()) {
      const auto place = std::tuple{post.client, post.entry.plan, post.entry.block};
      all[place].push_back(post.entry);
      last[place] = post.entry;
      if (post.entry.outcome != FetchOutcome::kWhole) continue;
      const std::uint64_t n = wanted.at({post.client, post.entry.plan})[post.entry.block];
      EXPECT_TRUE(std::ranges::equal(pool.slot(post.entry.slot), block_of(key(n), Pool::kBytes)));
      EXPECT_EQ(post.entry.checksum, content_checksum(key(n), pool.slot(post.entry.slot)));
    }
  }
  /// Nothing until the last word about the block was said.
  std::optional<FetchOutcome> outcome(ClientId client, PlanId plan, std::uint32_t block) const {
    const auto found = last.find({client, plan, block});
    if (found == last.end() || found->second.outcome == FetchOutcome::kLayers) return {};
    return found->second.outcome;
  }
  std::size_t over(ClientId client, PlanId plan) const {
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < wanted.at({client, plan}).size(); ++i)
      count += outcome(client, plan, i) ? 1U : 0U;
    return count;
  }
  void finish(ClientId client, PlanId plan) {
    while (over(client, plan) < wanted.at({client, plan}).size() && !testing::Test::HasFatalFailure()) turn();
  }
  bool release(ClientId client, PlanId plan, std::uint32_t block) {
    return desk.release(client, plan, std::span(&block, 1), false);
  }
  PoolStats stats() const {
    PoolStats stats = pool.store->stats();
    desk.count(stats);
    return stats;
  }

  Pool pool;
  FetchDesk desk;
  std::map<std::pair<ClientId, PlanId>, std::vector<std::uint64_t>> wanted;
  std::map<std::tuple<ClientId, PlanId, std::uint32_t>, ProgressEntry> last;
  std::map<std::tuple<ClientId, PlanId, std::uint32_t>, std::vector<ProgressEntry>> all;
};

/// A directory with blocks 1 to `blocks`.
void fill(const std::string& directory, std::uint64_t blocks, std::uint32_t layers = 1) {
  Pool pool(static_cast<std::uint32_t>(blocks + 1), static_cast<std::uint32_t>(blocks + 4), directory,
            layers);
  for (std::uint64_t n = 1; n <= blocks; ++n) pool.put(1, n);
  pool.settle();
}

TEST(FetchDesk, BlocksInMemoryComeAtOnceInOrder) {
  Desk desk(8, 8, 3, 8U, 0U);
  for (std::uint64_t n = 1; n <= 4; ++n) desk.pool.put(1, n);
  ASSERT_TRUE(desk.fetch(7, 1, {2, 4, 1, 9}));
  desk.turn();
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(desk.outcome(7, 1, i), FetchOutcome::kWhole);
  EXPECT_EQ(desk.outcome(7, 1, 3), FetchOutcome::kMissing);
  EXPECT_EQ((desk.last[{7, 1, 0}].layers), 3U);
  EXPECT_EQ(desk.stats().pins, 3U);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(desk.release(7, 1, i)) << "also of what had no slot";
  EXPECT_EQ(desk.stats().pins, 0U);
  EXPECT_EQ(desk.stats().plans_open, 0U);
}

TEST(FetchDesk, AHitOfTwoEnginesIsReadOnce) {
  test::TempDirectory directory;
  fill(directory.path(), 6);
  Desk desk(8, 16, 1, 16U, 10U, directory.path());
  desk.fetch(7, 1, {1, 2, 3, 4, 5, 6});
  desk.fetch(8, 1, {1, 2, 3, 4, 5, 6, 1});
  desk.finish(7, 1);
  desk.finish(8, 1);
  EXPECT_EQ(desk.pool.tier->store().counters().reads, 6U);
  EXPECT_EQ((desk.last[{7, 1, 2}].slot), (desk.last[{8, 1, 2}].slot));
  desk.fetch(9, 1, {3, 4});
  desk.finish(9, 1);
  EXPECT_EQ(desk.pool.tier->store().counters().reads, 6U) << "what lies in the arena is not read again";
  EXPECT_EQ(desk.stats().pins, 6U + 7U + 2U);
}

TEST(FetchDesk, LayersComeInOrderPerBlock) {
  Desk desk(40, 40, 4, Pool::Faulty{}, 60U, 4U);
  for (std::uint64_t n = 1; n <= 30; ++n) {
    desk.pool.put(1, n);
    desk.pool.settle();
  }
  for (std::uint64_t n = 100; n < 160; ++n) {  // so that the first thirty are in the store only
    desk.pool.put(1, n);
    desk.pool.settle();
  }
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t n = 1; n <= 30; ++n) blocks.push_back(n);
  for (auto* target : desk.pool.faulty) target->faults.delay_most = base::Nanos{3'000'000};
  desk.fetch(7, 1, blocks);
  desk.finish(7, 1);
  std::size_t by_layer = 0;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const auto& said = desk.all[{7, 1, i}];
    for (std::size_t k = 1; k < said.size(); ++k) EXPECT_GT(said[k].layers, said[k - 1].layers);
    EXPECT_EQ(said.back().outcome, FetchOutcome::kWhole);
    EXPECT_EQ(said.back().layers, 4U);
    if (said.size() > 1) ++by_layer;
  }
  EXPECT_GT(by_layer, 10U) << "most blocks are there in part before they are whole";
}

// Targets that take two requests at a time: what they are asked for first is what computing begins with.
TEST(FetchDesk, TheFirstLayerOfAllBlocksComesBeforeTheRestOfMost) {
  Desk desk(40, 40, 4, Pool::Faulty{1'000}, 60U, 4U);
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t n = 1; n <= 90; ++n) {
    desk.pool.put(1, n);
    desk.pool.settle();
    if (n <= 30) blocks.push_back(n);
  }
  desk.fetch(7, 1, blocks);
  const auto begun = [&] {
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < 30; ++i) count += desk.last.contains({7, 1, i}) ? 1U : 0U;
    return count;
  };
  while (begun() < 30 && !testing::Test::HasFatalFailure()) desk.turn();
  EXPECT_LT(desk.over(7, 1), 10U);
  desk.finish(7, 1);
  for (std::uint32_t i = 0; i < 30; ++i) EXPECT_EQ(desk.outcome(7, 1, i), FetchOutcome::kWhole);
}

TEST(FetchDesk, ACancelledPlanGivesEverythingBackAndDisturbsNoOther) {
  Desk desk(40, 40, 1, Pool::Faulty{}, 20U, 1U);
  for (std::uint64_t n = 1; n <= 8; ++n) {
    desk.pool.put(1, n);
    desk.pool.settle();
  }
  for (std::uint64_t n = 100; n < 120; ++n) {
    desk.pool.put(1, n);
    desk.pool.settle();
  }
  for (auto* target : desk.pool.faulty) target->faults.hung = true;
  desk.fetch(7, 1, {1, 2, 3, 4, 5, 119});
  desk.fetch(8, 1, {4, 5, 6});
  desk.turn();
  EXPECT_EQ(desk.stats().blocks_held, 9U);
  EXPECT_EQ(desk.stats().loads_shared, 2U);
  desk.desk.cancel(7, 1);
  EXPECT_EQ(desk.stats().loads_cancelled, 3U) << "4 and 5 are still wanted";
  EXPECT_EQ(desk.stats().blocks_held, 3U);
  EXPECT_EQ(desk.stats().pins, 3U);
  for (auto* target : desk.pool.faulty) target->faults.hung = false;
  desk.finish(8, 1);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(desk.outcome(8, 1, i), FetchOutcome::kWhole);
  EXPECT_EQ(desk.over(7, 1), 1U) << "not a word after the cancel";
  desk.desk.leave(8);
  EXPECT_EQ(desk.stats().pins + desk.stats().plans_open + desk.stats().blocks_held, 0U);
}

TEST(FetchDesk, APlanThatEndsWithAllItsBlocksWasNotCancelled) {
  Desk desk(20, 20, 1, Pool::Faulty{}, 20U, 1U);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    desk.pool.put(1, n);
    desk.pool.settle();
  }
  desk.fetch(7, 1, {1, 2, 3});
  desk.turn();
  desk.desk.cancel(7, 1);
  EXPECT_EQ(desk.stats().fetch_plans_cancelled, 0U);
  EXPECT_EQ(desk.stats().pins + desk.stats().plans_open + desk.stats().blocks_held, 0U);
}

TEST(FetchDesk, WhatIsLateIsToldAndKeepsItsSlotUntilReleased) {
  Desk desk(40, 40, 1, Pool::Faulty{}, 4U, 1U);
  for (const std::uint64_t n : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
    desk.pool.put(1, n);
    desk.pool.settle();
  }
  for (auto* target : desk.pool.faulty) target->faults.hung = true;
  desk.fetch(7, 1, {8, 1, 2, 3, 4}, desk.pool.clock.now() + base::Nanos{20'000'000});
  desk.finish(7, 1);
  EXPECT_EQ(desk.outcome(7, 1, 0), FetchOutcome::kWhole) << "it lay in memory";
  for (std::uint32_t i = 1; i < 5; ++i) EXPECT_EQ(desk.outcome(7, 1, i), FetchOutcome::kLate);
  EXPECT_EQ(desk.stats().fetch_plans_late, 1U);
  EXPECT_EQ(desk.stats().blocks_held, 4U) << "one never had a slot";
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(desk.release(7, 1, i));
  EXPECT_EQ(desk.stats().pins + desk.stats().plans_open, 0U);
  for (auto* target : desk.pool.faulty) target->faults.hung = false;
  desk.fetch(7, 2, {1, 2, 3});
  desk.finish(7, 2);
  EXPECT_EQ(desk.outcome(7, 2, 2), FetchOutcome::kWhole) << "the slots can be used again";
}

TEST(FetchDesk, EvictedBetweenMatchAndFetchIsAMissOfThatBlockOnly) {
  test::TempDirectory directory;
  fill(directory.path(), 4);
  Desk desk(8, 16, 1, 16U, 10U, directory.path());
  EXPECT_EQ(desk.pool.match({1, 2, 3, 4}), 4U);
  const BlockKey gone = key(3);
  desk.pool.tier->store().erase({&gone, 1}, desk.pool.clock.now());
  desk.fetch(7, 1, {1, 2, 3, 4});
  desk.finish(7, 1);
  EXPECT_EQ(desk.outcome(7, 1, 2), FetchOutcome::kMissing);
  for (const std::uint32_t i : {0U, 1U, 3U}) EXPECT_EQ(desk.outcome(7, 1, i), FetchOutcome::kWhole);
  EXPECT_EQ(desk.stats().gets_stale, 1U);
}

TEST(FetchDesk, DamagedShardsWithinAPlanAreComputedAndWrittenAgain) {
  test::TempDirectory directory;
  fill(directory.path(), 1);
  test::damage_shards(directory.path(), 2);
  Desk desk(8, 16, 1, 16U, 5U, directory.path());
  desk.fetch(7, 1, {1});
  desk.finish(7, 1);
  EXPECT_EQ(desk.outcome(7, 1, 0), FetchOutcome::kWhole);
  EXPECT_GE(desk.stats().shards_bad, 1U);
  while (desk.pool.tier->store().repairs_waiting() > 0) desk.turn();
  EXPECT_GE(desk.stats().shards_repaired, 1U);
}

TEST(FetchDesk, APlanLargerThanTheArenaComesAsReleasedBlocksMakeRoom) {
  test::TempDirectory directory;
  fill(directory.path(), 30);
  Desk desk(3, 4, 1, 5U, 34U, directory.path());
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t n = 30; n >= 1; --n) blocks.push_back(n);
  desk.fetch(7, 1, blocks);
  std::set<std::uint32_t> released;
  while (released.size() < 30) {
    desk.turn();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    EXPECT_LE(desk.stats().blocks_held, 3U);
    for (std::uint32_t i = 0; i < 30; ++i) {
      if (!desk.outcome(7, 1, i) || released.contains(i)) continue;
      EXPECT_EQ(desk.outcome(7, 1, i), FetchOutcome::kWhole);
      EXPECT_TRUE(desk.release(7, 1, i));
      released.insert(i);
    }
  }
  EXPECT_EQ(desk.stats().plans_open + desk.stats().pins, 0U);
}

TEST(FetchDesk, AGreedyEngineLeavesRoomForAnother) {
  test::TempDirectory directory;
  fill(directory.path(), 20);
  Desk desk(4, 7, 1, 8U, 24U, directory.path());
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t n = 1; n <= 18; ++n) blocks.push_back(n);
  desk.fetch(7, 1, blocks, base::kForever, 100);  // and never releases any
  for (int i = 0; i < 20; ++i) desk.turn();
  EXPECT_EQ(desk.over(7, 1), 4U);
  desk.fetch(8, 1, {19, 20, 3});
  desk.finish(8, 1);
  EXPECT_EQ(desk.outcome(8, 1, 0), FetchOutcome::kWhole);
  EXPECT_EQ(desk.over(7, 1), 4U);
  EXPECT_EQ(desk.pool.put(9, 50), protocol::PutOutcome::kGranted) << "and for who puts something";
}

TEST(FetchDesk, WhatBreaksTheProtocolIsRefused) {
  Desk desk(8, 8, 1, 8U, 0U);
  desk.pool.put(1, 1);
  EXPECT_FALSE(desk.fetch(7, 1, {}));
  EXPECT_TRUE(desk.fetch(7, 2, {1, 2}));
  EXPECT_FALSE(desk.fetch(7, 2, {1}));
  EXPECT_TRUE(desk.fetch(8, 2, {1, 2})) << "numbers are the client's own";
  EXPECT_FALSE(desk.release(7, 2, 0)) << "nothing was said about it yet";
  desk.turn();
  EXPECT_FALSE(desk.release(7, 2, 2)) << "it has two blocks";
  const std::vector<std::uint64_t> many(101, 1);
  EXPECT_TRUE(desk.fetch(7, 3, many));
  desk.turn();
  EXPECT_EQ((desk.last[{7, 3, ProgressEntry::kWholePlan}].outcome), FetchOutcome::kRefused);
  EXPECT_EQ(desk.stats().fetch_plans_refused, 1U);
}

// Engines fetch, release, cancel and die while others put blocks and targets fail: what comes is right, and
// nothing is held in the end.
RC_GTEST_PROP(FetchDeskProperty, RightContentAndNoLeaks, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const auto slots = static_cast<std::uint32_t>(3 + prng.below(8));
  Desk desk(std::max(1U, slots / 2), slots - 1, 2, Pool::Faulty{}, slots, 2U);
  for (auto* target : desk.pool.faulty) target->faults.corrupt_per_mille = 20;
  PlanId next = 1;
  std::size_t whole = 0;
  for (int step = 0; step < 150; ++step) {
    const ClientId client = 1 + prng.below(3);
    switch (prng.below(6)) {
      case 0:
        desk.pool.put(9, prng.below(12));
        break;
      case 1: {
        std::vector<std::uint64_t> blocks;
        for (std::uint64_t n = 1 + prng.below(6); n > 0; --n) blocks.push_back(prng.below(14));
        const bool bounded = prng.below(3) == 0;
        const base::Nanos soon =
            desk.pool.clock.now() + base::Nanos{static_cast<std::int64_t>(prng.below(2'000'000))};
        RC_ASSERT(desk.fetch(client, next++, blocks, bounded ? soon : base::kForever,
                             static_cast<std::int32_t>(prng.below(2))));
        break;
      }
      case 2:
        if (next > 1) desk.desk.cancel(client, 1 + prng.below(next));
        break;
      case 3:
        if (prng.below(5) == 0) desk.desk.leave(client);
        break;
      case 4:
        for (const auto& [place, entry] : desk.last) {
          if (entry.outcome == FetchOutcome::kLayers || prng.below(2) == 0) continue;
          RC_ASSERT(desk.release(std::get<0>(place), std::get<1>(place), std::get<2>(place)));
          whole += entry.outcome == FetchOutcome::kWhole ? 1U : 0U;
        }
        break;
      default:
        desk.turn();
    }
    RC_ASSERT(!testing::Test::HasFailure());
    RC_ASSERT(desk.stats().pins == desk.stats().blocks_held);
    RC_ASSERT(desk.stats().blocks_held < slots);
  }
  for (ClientId client = 1; client <= 3; ++client) desk.desk.leave(client);
  desk.pool.settle();
  RC_ASSERT(desk.stats().pins == 0U && desk.stats().plans_open == 0U);
  for (std::uint64_t n = 100; n < 100 + slots; ++n) {
    RC_ASSERT(desk.pool.put(9, n) == protocol::PutOutcome::kGranted);
    desk.pool.settle();
  }
  RC_CLASSIFY(whole > 10);
}

}  // namespace
}  // namespace trimtab::kv_pool
