#include "kv_pool/pool_store.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>

#include "kv_pool/content_checksum.h"
#include "kv_pool/pool_harness.h"
#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using protocol::GetOutcome;
using protocol::PutOutcome;
using test::block_of;
using test::damage_shards;
using test::key;

using test::Pool;

constexpr std::uint64_t kBytes = Pool::kBytes;

TEST(PoolStore, VisibleAtOnceAndReadBack) {
  Pool pool(4, 0);
  EXPECT_EQ(pool.match({1, 2, 3}), 0U);
  EXPECT_EQ(pool.put(1, 1), PutOutcome::kGranted);
  EXPECT_EQ(pool.put(1, 2), PutOutcome::kGranted);
  EXPECT_EQ(pool.put(2, 2), PutOutcome::kPresent);
  EXPECT_EQ(pool.match({1, 2, 3}), 2U);
  EXPECT_EQ(pool.read(2, 1), GetOutcome::kPinned);
  EXPECT_EQ(pool.read(2, 3), GetOutcome::kMissing);
}

// vllm PR#28585 and others: every block of a request is counted once, whatever follows.
TEST(PoolStore, EachRequestIsCountedOnce) {
  Pool pool(4, 0);
  pool.put(1, 1);
  pool.match({1, 2, 3});
  pool.match({1, 2, 3}, false);
  pool.read(1, 1);
  pool.read(1, 9);
  const PoolStats stats = pool.store->stats();
  EXPECT_EQ(stats.match_requests, 1U);
  EXPECT_EQ(stats.blocks_queried, 3U);
  EXPECT_EQ(stats.blocks_hit, 1U);
  EXPECT_EQ(stats.blocks_missed, 2U);
  EXPECT_EQ(stats.gets_memory, 1U);
  EXPECT_EQ(stats.gets_stale, 1U);
}

TEST(PoolStore, WhatIsReadIsNotEvicted) {
  Pool pool(2, 0);
  pool.put(1, 1);
  pool.put(1, 2);
  const auto first = pool.get(7, 1);
  const auto second = pool.get(7, 2);
  EXPECT_EQ(pool.put(1, 3), PutOutcome::kRefused) << "both are being read";
  EXPECT_TRUE(pool.store->unpin(7, second.slot, false));
  EXPECT_EQ(pool.put(1, 3), PutOutcome::kGranted);
  EXPECT_EQ(pool.match({1}), 1U);
  EXPECT_EQ(pool.match({2}), 0U);
  EXPECT_TRUE(std::ranges::equal(pool.slot(first.slot), block_of(key(1), kBytes)));
}

// Mooncake#4239: the payload went while it was being transferred. What is on its way from the targets is not
// what makes room, though it was used longest ago.
TEST(PoolStore, WhatIsReadFromTheTargetsIsNotEvictedFromThem) {
  Pool pool(Pool::Faulty{8ULL << 20, 6}, 4, 1);
  for (std::uint64_t n = 1; n <= 6; ++n) {
    pool.put(1, n);
    pool.settle();
  }
  for (auto* target : pool.faulty) target->faults.stuck = true;
  ASSERT_FALSE(pool.store->get(7, key(1))) << "it is read";
  for (std::uint64_t n = 7; n <= 8; ++n) {
    ASSERT_EQ(pool.put(1, n), PutOutcome::kGranted);
    while (pool.store->stats().dirty_entries > 0 && !HasFatalFailure()) pool.wait();
  }
  EXPECT_EQ(pool.store->stats().file_evictions, 2U);
  EXPECT_EQ(pool.match({1}), 1U);
  EXPECT_EQ(pool.match({2}) + pool.match({3}), 0U) << "the next oldest made room";
  for (auto* target : pool.faulty) target->unstick();
  EXPECT_EQ(pool.read(8, 1), GetOutcome::kPinned);
  EXPECT_EQ(pool.store->stats().pins, 1U) << "and who had asked for it has it";
}

// A block that is being written is nobody's yet, and what a second writer has is not asked for.
TEST(PoolStore, TwoWritersOfOneBlockAreOneAndTheNextIfThatOneDies) {
  Pool pool(3, 0);
  const auto first = pool.store->put(7, key(1), {});
  ASSERT_EQ(first.outcome, PutOutcome::kGranted);
  EXPECT_EQ(pool.put(8, 1), PutOutcome::kPresent);
  EXPECT_EQ(pool.match({1}), 0U);
  EXPECT_EQ(pool.read(9, 1), GetOutcome::kMissing) << "half of it may be there";
  pool.store->leave(7);
  EXPECT_EQ(pool.match({1}), 0U);
  EXPECT_EQ(pool.put(8, 1), PutOutcome::kGranted);
  EXPECT_EQ(pool.read(9, 1), GetOutcome::kPinned);
}

// LMCache PR#3884 and others: what is looked up and never fetched is not held by anybody.
TEST(PoolStore, LookingUpHoldsNothing) {
  Pool pool(3, 0);
  for (std::uint64_t round = 0; round < 50; ++round) {
    const std::uint64_t first = 10 * round;
    for (std::uint64_t n = 0; n < 3; ++n) {
      ASSERT_EQ(pool.put(1, first + n), PutOutcome::kGranted) << "round " << round;
    }
    for (int times = 0; times < 4; ++times) EXPECT_EQ(pool.match({first, first + 1, first + 2}), 3U);
    EXPECT_EQ(pool.store->stats().pins, 0U);
  }
  EXPECT_EQ(pool.store->stats().puts_refused, 0U);
}

// LMCache#1034 and others: what a dead client held is free again.
TEST(PoolStore, AClientThatVanishesLeavesNothingBehind) {
  Pool pool(2, 0);
  pool.put(1, 1);
  pool.get(7, 1);
  pool.get(7, 1);
  const auto granted = pool.store->put(7, key(2), {});
  ASSERT_EQ(granted.outcome, PutOutcome::kGranted);
  EXPECT_EQ(pool.store->stats().pins, 2U);
  pool.store->leave(7);
  EXPECT_EQ(pool.store->stats().pins, 0U);
  EXPECT_EQ(pool.store->stats().puts_abandoned, 1U);
  EXPECT_EQ(pool.match({2}), 0U) << "never committed, never seen";
  EXPECT_FALSE(pool.store->commit(7, granted.slot, 0));
  EXPECT_EQ(pool.put(1, 2), PutOutcome::kGranted);
  EXPECT_EQ(pool.put(1, 3), PutOutcome::kGranted) << "the pinned slot can be evicted now";
}

TEST(PoolStore, NothingHeldIsNothingToGiveBack) {
  Pool pool(2, 0);
  pool.put(1, 1);
  const auto got = pool.get(7, 1);
  EXPECT_FALSE(pool.store->unpin(8, got.slot, true));
  EXPECT_FALSE(pool.store->unpin(7, got.slot + 1, true));
  EXPECT_EQ(pool.match({1}), 1U);
  EXPECT_FALSE(pool.store->commit(7, got.slot, 0));
}

TEST(PoolStore, DamagedMemoryIsWithdrawnButNotUnderItsReaders) {
  Pool pool(2, 0);
  pool.put(1, 1);
  const auto a = pool.get(7, 1);
  pool.get(8, 1);
  EXPECT_TRUE(pool.store->unpin(7, a.slot, true));
  EXPECT_EQ(pool.store->stats().corrupt, 1U);
  EXPECT_EQ(pool.match({1}), 0U);
  EXPECT_EQ(pool.put(1, 2), PutOutcome::kGranted);
  EXPECT_EQ(pool.put(1, 3), PutOutcome::kGranted) << "evicts 2: the withdrawn slot is still being read";
  EXPECT_EQ(pool.match({2}), 0U);
  EXPECT_TRUE(pool.store->unpin(8, a.slot, true)) << "the second complaint changes nothing";
  EXPECT_EQ(pool.store->stats().corrupt, 1U);
  EXPECT_EQ(pool.put(1, 4), PutOutcome::kGranted);
  EXPECT_EQ(pool.match({3}), 1U);
}

TEST(PoolStore, AChainLosesItsEndFirst) {
  Pool pool(3, 0);
  pool.put(1, 1);
  pool.put(1, 2, key(1));
  pool.put(1, 3, key(2));
  pool.put(1, 9);
  EXPECT_EQ(pool.match({1, 2, 3}), 2U);
}

TEST(PoolStore, TheFileTierHoldsWhatMemoryCannot) {
  test::TempDirectory directory;
  {
    Pool pool(2, 8, directory.path());
    for (std::uint64_t n = 1; n <= 5; ++n) {
      EXPECT_EQ(pool.put(1, n), PutOutcome::kGranted);
      pool.settle();
    }
    EXPECT_EQ(pool.match({1, 2, 3, 4, 5}), 5U);
    for (std::uint64_t n = 1; n <= 5; ++n) EXPECT_EQ(pool.read(1, n), GetOutcome::kPinned);
    const PoolStats stats = pool.store->stats();
    EXPECT_EQ(stats.file_entries, 5U);
    EXPECT_EQ(stats.memory_entries, 2U);
    EXPECT_GE(stats.gets_file, 3U);
    EXPECT_EQ(stats.pins, 0U);
    EXPECT_EQ(stats.dirty_entries, 0U);
    // LMCache#2574: what lies in memory and what lies below are hits alike, each once.
    EXPECT_EQ(stats.blocks_hit, 5U);
    EXPECT_EQ(stats.blocks_missed, 0U);
  }
  Pool again(2, 8, directory.path());
  EXPECT_EQ(again.store->stats().recovered_entries, 5U);
  EXPECT_EQ(again.match({1, 2, 3, 4, 5}), 5U);
  EXPECT_EQ(again.read(1, 3), GetOutcome::kPinned);
}

TEST(PoolStore, TheFileTierEvictsItsOldest) {
  test::TempDirectory directory;
  Pool pool(2, 3, directory.path());
  for (std::uint64_t n = 1; n <= 3; ++n) {
    pool.put(1, n);
    pool.settle();
  }
  pool.match({1});
  pool.put(1, 4);
  pool.settle();
  EXPECT_EQ(pool.match({1}), 1U);
  EXPECT_EQ(pool.match({2}), 0U);
  EXPECT_EQ(pool.store->stats().file_evictions, 1U);
}

// Blocks not yet durable are not thrown out for new ones: the new one is refused and counted.
TEST(PoolStore, AFullPoolMakesRoomAlsoWhileTwoTargetsAreDead) {
  constexpr std::uint32_t kRoom = 4;  // blocks
  Pool::Faulty how;
  how.blocks = kRoom;
  Pool pool(how, 16, 1);
  for (std::uint64_t n = 1; n <= kRoom; ++n) {
    ASSERT_EQ(pool.put(1, n), PutOutcome::kGranted);
    pool.settle();
  }
  ASSERT_EQ(pool.store->stats().file_evictions, 0U);
  pool.faulty[3]->faults.dead = pool.faulty[8]->faults.dead = true;
  for (std::uint64_t n = kRoom + 1; n <= 2 * kRoom; ++n) {
    ASSERT_EQ(pool.put(1, n), PutOutcome::kGranted);
    pool.settle();
    EXPECT_TRUE(pool.tier->present(key(n))) << "block " << n << " was put and is in memory only";
  }
  const PoolStats stats = pool.store->stats();
  EXPECT_GE(stats.file_evictions, kRoom);
  EXPECT_EQ(stats.file_errors, 0U);
  EXPECT_EQ(stats.memory_only, 0U);
}

/// What was put while the targets took nothing is written when they take blocks again, without another put.
TEST(PoolStore, WhatCouldNotBeSavedIsSavedLater) {
  Pool pool(Pool::Faulty{}, 40, 1);
  for (const std::uint32_t t : {1U, 5U, 9U}) pool.faulty[t]->faults.dead = true;
  for (std::uint64_t n = 1; n <= 30; ++n) ASSERT_EQ(pool.put(1, n), PutOutcome::kGranted);
  pool.settle();
  EXPECT_EQ(pool.store->stats().memory_only, 1U);
  EXPECT_FALSE(pool.store->flush(1)->durable) << "the loss is told";
  for (const std::uint32_t t : {1U, 5U, 9U}) pool.faulty[t]->faults.dead = false;
  const auto all = [&] {
    for (std::uint64_t n = 1; n <= 30; ++n)
      if (!pool.tier->present(key(n))) return false;
    return true;
  };
  for (const base::Nanos end = pool.clock.now() + base::Nanos{60'000'000'000};
       !all() && pool.clock.now() < end;)
    pool.wait();
  EXPECT_TRUE(all());
  pool.settle();
  EXPECT_EQ(pool.store->stats().memory_only, 0U);
  EXPECT_EQ(pool.store->stats().dirty_entries, 0U);
}

TEST(PoolStore, UndurableBlocksStay) {
  test::TempDirectory directory;
  Pool pool(2, 8, directory.path());
  pool.put(1, 1);
  pool.put(1, 2);
  EXPECT_EQ(pool.put(1, 3), PutOutcome::kRefused);
  EXPECT_FALSE(pool.store->flush(5)) << "not yet";
  pool.settle();
  pool.store->advance();
  const auto answers = pool.store->take_answers();
  ASSERT_EQ(answers.flushes.size(), 1U);
  EXPECT_EQ(answers.flushes[0].first, 5U);
  EXPECT_EQ(answers.flushes[0].second.durable, 1);
  EXPECT_EQ(pool.put(1, 3), PutOutcome::kGranted);
  EXPECT_EQ(pool.store->stats().puts_refused, 1U);
}

// Two shards of a block may be damaged: it is read all the same, and they are written again.
TEST(PoolStore, TwoDamagedShardsAreHealed) {
  test::TempDirectory directory;
  {
    Pool pool(2, 4, directory.path());
    pool.put(1, 1);
    pool.settle();
  }
  damage_shards(directory.path(), 2);
  {
    Pool pool(2, 4, directory.path());
    EXPECT_EQ(pool.read(1, 1), GetOutcome::kPinned);
    EXPECT_GE(pool.store->stats().shards_bad, 1U);
    while (pool.tier->store().repairs_waiting() > 0) pool.wait();
  }
  Pool again(2, 4, directory.path());
  EXPECT_EQ(again.read(1, 1), GetOutcome::kPinned);
}

// More of them make it a miss, which is counted and found once.
TEST(PoolStore, DamagedFilesAreMissesOnce) {
  test::TempDirectory directory;
  {
    Pool pool(4, 4, directory.path());
    for (std::uint64_t n = 1; n <= 4; ++n) pool.put(1, n);
    pool.settle();
  }
  damage_shards(directory.path(), 4 * kv_code::kShards);
  Pool pool(4, 4, directory.path());
  for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(pool.read(1, n), GetOutcome::kMissing);
  EXPECT_EQ(pool.store->stats().gets_stale, 4U);
  EXPECT_EQ(pool.match({1, 2, 3, 4}), 0U);
  for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(pool.put(1, n), PutOutcome::kGranted);
  pool.settle();
  for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(pool.read(1, n), GetOutcome::kPinned);
}

// A user that writes something else than it said (or into a slot that is not its own any more) poisons
// nothing: neither memory nor file serve it.
TEST(PoolStore, ContentThatDoesNotMatchNeverReachesTheFile) {
  test::TempDirectory directory;
  Pool pool(4, 4, directory.path());
  const auto granted = pool.store->put(1, key(1), {});
  pool.store->commit(1, granted.slot, 12'345);
  pool.settle();
  EXPECT_EQ(pool.match({1}), 0U);
  EXPECT_EQ(pool.store->stats().corrupt, 1U);
  EXPECT_EQ(pool.store->stats().file_writes, 0U);
  EXPECT_EQ(pool.put(1, 1), PutOutcome::kGranted);
}

// Users come, die at any point, damage memory; blocks move between tiers. Whoever is given a block is given
// the right one, and nobody leaves anything behind.
RC_GTEST_PROP(PoolStoreProperty, RightContentAndNoLeaks, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  test::TempDirectory directory;
  Pool pool(static_cast<std::uint32_t>(2 + prng.below(4)), static_cast<std::uint32_t>(2 + prng.below(8)),
            directory.path());
  std::multimap<ClientId, std::uint32_t> pins;
  ClientId next_client = 10;
  std::uint64_t hits = 0;
  for (int i = 0; i < 120; ++i) {
    const ClientId client = 1 + prng.below(3);
    const std::uint64_t n = prng.below(8);
    switch (prng.below(8)) {
      case 0:
      case 6:
        pool.put(client, n, prng.below(2) == 0 ? std::nullopt : std::optional(key(n + 1)));
        break;
      case 1: {  // dies between grant and commit
        const ClientId dying = next_client++;
        const auto granted = pool.store->put(dying, key(n), {});
        if (granted.outcome == PutOutcome::kGranted)
          std::ranges::fill(pool.slot(granted.slot), std::byte{0x77});
        pool.store->leave(dying);
        break;
      }
      case 2:
      case 7: {
        const auto got = pool.get(client, n);
        if (got.outcome != GetOutcome::kPinned) break;
        ++hits;
        pins.emplace(client, got.slot);
        RC_ASSERT(content_checksum(key(n), pool.slot(got.slot)) == got.checksum);
        RC_ASSERT(std::ranges::equal(pool.slot(got.slot), block_of(key(n), kBytes)));
        break;
      }
      case 3: {
        const auto held = pins.find(client);
        if (held == pins.end()) break;
        RC_ASSERT(pool.store->unpin(client, held->second, prng.below(4) == 0));
        pins.erase(held);
        break;
      }
      case 4:
        pool.store->leave(client);
        pins.erase(client);
        break;
      default:
        pool.store->advance();
    }
    RC_ASSERT(pool.store->stats().pins == pins.size());
  }
  for (ClientId client = 1; client <= 3; ++client) pool.store->leave(client);
  pool.settle();
  const PoolStats stats = pool.store->stats();
  RC_ASSERT(stats.pins == 0U && stats.dirty_entries == 0U);
  // Every slot can be had again: fill the memory with new blocks.
  for (std::uint64_t n = 100; n < 100 + stats.memory_slots; ++n) {
    RC_ASSERT(pool.put(1, n) == PutOutcome::kGranted);
    pool.settle();
  }
  RC_CLASSIFY(hits > 10);
}

}  // namespace
}  // namespace trimtab::kv_pool
