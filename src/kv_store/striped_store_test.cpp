#include "kv_store/striped_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

TEST(StripedStoreTest, GivesBackWhatWasWritten) {
  for (const std::uint32_t count : {1U, 2U, 5U, 6U, 11U, 12U, 13U, 30U}) {
    Fleet fleet(count);
    for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten) << count;
    for (std::uint64_t n = 0; n < 20; ++n) {
      EXPECT_TRUE(fleet.whole(n));
      ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << count << " targets, block " << n;
    }
    EXPECT_EQ(fleet.read(99), std::nullopt);
    EXPECT_EQ(fleet.last_read, Kind::kMissing);
    EXPECT_EQ(fleet.store->counters().reads, 20U);
  }
}

TEST(StripedStoreTest, AnyTwoOfTwelveTargetsMayBeLost) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 6; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (std::uint32_t a = 0; a < 12; ++a) {
    for (std::uint32_t b = a + 1; b < 12; ++b) {
      fleet.targets[a]->faults.dead = fleet.targets[b]->faults.dead = true;
      for (std::uint64_t n = 0; n < 6; ++n)
        ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << a << ' ' << b << " block " << n;
      for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(fleet.store->index().present(key_of(n)));
      fleet.targets[a]->faults.dead = fleet.targets[b]->faults.dead = false;
      fleet.pass(kSecond);
      ASSERT_EQ(fleet.store->channels().health(static_cast<TargetId>(a)), TargetHealth::State::kAlive);
      ASSERT_EQ(fleet.store->channels().health(static_cast<TargetId>(b)), TargetHealth::State::kAlive);
      for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(fleet.read(n)) << "answers end the doubled backoff";
    }
  }
  EXPECT_GT(fleet.store->counters().targets_died, 60U);
  EXPECT_GT(fleet.store->counters().reads_degraded, 60U);
}

TEST(StripedStoreTest, WithThreeLostNothingIsClaimed) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (const std::uint32_t t : {1U, 4U, 9U}) fleet.targets[t]->faults.dead = true;
  fleet.read(0);  // finds it out
  fleet.pass(kSecond);
  for (std::uint64_t n = 0; n < 10; ++n) {
    EXPECT_FALSE(fleet.store->index().present(key_of(n)));
    EXPECT_EQ(fleet.read(n), std::nullopt);
    EXPECT_EQ(fleet.last_read, Kind::kMissing);
  }
  fleet.targets[4]->faults.dead = false;
  fleet.pass(kSecond * 5);
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_EQ(fleet.read(n), block_of(n, fleet.block_bytes()));
}

TEST(StripedStoreTest, LayersAreReadyInOrderBeforeTheWhole) {
  Fleet fleet(12);
  ASSERT_EQ(fleet.write(3), Kind::kWritten);
  const auto block = block_of(3, fleet.block_bytes());
  std::vector<std::byte> to(fleet.block_bytes());
  const StripedStore::BlockRead one{key_of(3), to};
  const auto handle = fleet.store->read({&one, 1}, base::kForever, 0, fleet.now);
  bool early = false;
  while (fleet.events.empty() || !fleet.events.back().last) {
    const std::size_t before = fleet.events.size();
    fleet.step();
    for (std::size_t i = before; i < fleet.events.size(); ++i) {
      ASSERT_EQ(fleet.events[i].handle, handle);
      if (fleet.events[i].kind != Kind::kLayers) continue;
      early = true;
      EXPECT_EQ(fleet.events[i].layers, 1U);
      EXPECT_TRUE(std::equal(to.begin(), to.begin() + 600, block.begin()));
    }
  }
  EXPECT_TRUE(early);
  EXPECT_EQ(to, block);
}

/// Between two tries of a read another process writes the block anew: the read fails, since its first layer
/// is the old writing's, and the new one is not taken for damaged.
TEST(StripedStoreTest, AReadThatMeetsAnotherWritingFailsAndTheBlockStays) {
  Fleet fleet(12);
  ASSERT_EQ(fleet.write(3), Kind::kWritten);
  std::vector<std::byte> to(fleet.block_bytes());
  const StripedStore::BlockRead one{key_of(3), to};
  const auto handle = fleet.store->read({&one, 1}, base::kForever, 0, fleet.now);
  while (fleet.events.empty()) fleet.step(base::Nanos{10'000});
  ASSERT_EQ(fleet.events.front().kind, Kind::kLayers);
  for (testing::FaultyTarget* target : fleet.targets) target->faults.fail_per_mille = 1'000;
  while (fleet.store->counters().reads_retried == 0) fleet.step(base::Nanos{10'000});
  std::array<std::vector<std::byte>, kShards> bytes;
  kv_code::Shards spans;
  for (std::uint32_t s = 0; s < kShards; ++s)
    spans[s] = (bytes[s].resize(Fleet::small().layout.shard_bytes), bytes[s]);
  kv_code::write_shards(Fleet::small().layout, key_of(3), block_of(3, fleet.block_bytes(), 1), spans);
  for (std::uint8_t s = 0; s < kShards; ++s) {
    kv_target::Request request;
    request.verb = kv_target::Verb::kWrite;
    request.name = {key_of(3), s};
    request.content = bytes[s];
    testing::FaultyTarget& target = *fleet.targets[fleet.store->map().of(key_of(3))[s]];
    target.inner().submit({&request, 1});
    std::vector<kv_target::Completion> done;
    target.inner().poll(done);
    target.faults.fail_per_mille = 0;
  }
  EXPECT_EQ(fleet.wait(handle).kind, Kind::kReadFailed);
  EXPECT_TRUE(fleet.store->index().present(key_of(3)));
  EXPECT_EQ(fleet.store->counters().stale, 0U);
  EXPECT_EQ(fleet.read(3), block_of(3, fleet.block_bytes(), 1));
}

TEST(StripedStoreTest, OneSlowTargetIsNotWaitedFor) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 50; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (int i = 0; i < 200; ++i) fleet.read(static_cast<std::uint64_t>(i % 50));
  fleet.targets[5]->faults.slow = base::Nanos{200'000'000};
  for (std::uint64_t n = 0; n < 50; ++n) {
    const base::Nanos before = fleet.now;
    ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes()));
    EXPECT_LT((fleet.now - before).value, 2'000'000) << "of the store's own time";
  }
}

TEST(StripedStoreTest, TwoSlowTargetsCostAHedgeAndNoMore) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 50; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (int i = 0; i < 200; ++i) fleet.read(static_cast<std::uint64_t>(i % 50));
  fleet.targets[5]->faults.slow = fleet.targets[6]->faults.slow = base::Nanos{30'000'000};
  for (std::uint64_t n = 0; n < 50; ++n) {
    const base::Nanos before = fleet.now;
    ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes()));
    EXPECT_LT((fleet.now - before).value, 5'000'000);
  }
  EXPECT_GT(fleet.store->counters().hedges, 0U);
  EXPECT_LE(fleet.store->counters().hedges, 50U);
}

TEST(StripedStoreTest, DamageIsReadAroundCountedAndMended) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 30; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  // Behind the store's back: a flipped byte, a torn shard, another's shard, none.
  const auto put = [&](std::uint64_t n, std::uint8_t shard, std::span<const std::byte> content) {
    const TargetId at = fleet.store->map().of(key_of(n))[shard];
    kv_target::Request request;
    request.verb = content.empty() ? kv_target::Verb::kErase : kv_target::Verb::kWrite;
    request.name = {key_of(n), shard};
    request.content = content;
    fleet.targets[at]->inner().submit({&request, 1});
    std::vector<kv_target::Completion> done;
    fleet.targets[at]->inner().poll(done);
  };
  const auto get = [&](std::uint64_t n, std::uint8_t shard) {
    const TargetId at = fleet.store->map().of(key_of(n))[shard];
    std::vector<std::byte> content(4'096);
    kv_target::Request request;
    request.name = {key_of(n), shard};
    request.buffer = content;
    fleet.targets[at]->inner().submit({&request, 1});
    std::vector<kv_target::Completion> done;
    fleet.targets[at]->inner().poll(done);
    content.resize(done.front().bytes);
    return content;
  };
  std::vector<std::vector<std::byte>> right;
  for (std::uint64_t n = 0; n < 4; ++n) right.push_back(get(n, 2));
  auto flipped = right[0];
  flipped[flipped.size() - 3] ^= std::byte{4};
  put(0, 2, flipped);
  put(1, 2, std::span(right[1]).first(right[1].size() - 1));
  put(2, 2, get(2, 3));
  put(3, 2, {});
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << n;
  fleet.store->start_walk(WalkKind::kScrub, fleet.now);  // a read may be over before the bad shard comes
  fleet.settle();
  const StoreCounters seen = fleet.store->counters();
  EXPECT_GE(seen.shards_corrupt, 1U);
  EXPECT_GE(seen.shards_short, 1U);
  EXPECT_GE(seen.shards_foreign, 1U);
  EXPECT_GE(seen.shards_missing, 1U);
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(get(n, 2), right[n]) << n;
  EXPECT_EQ(fleet.store->counters().shards_repaired, 4U);
  EXPECT_EQ(fleet.store->counters().stale, 0U);
}

TEST(StripedStoreTest, AScrubFindsWhatNobodyReads) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  kv_target::Request gone;
  gone.verb = kv_target::Verb::kErase;
  for (std::uint64_t n = 0; n < 40; n += 4) {
    gone.name = {key_of(n), 11};
    auto& inner = fleet.targets[fleet.store->map().of(key_of(n))[11]]->inner();
    inner.submit({&gone, 1});
    std::vector<std::byte> rubbish(100);
    kv_target::Request other;
    other.verb = kv_target::Verb::kWrite;
    other.name = gone.name;
    other.content = rubbish;
    inner.submit({&other, 1});
    std::vector<kv_target::Completion> done;
    inner.poll(done);
  }
  fleet.store->start_walk(WalkKind::kScrub, fleet.now);
  fleet.settle();
  const WalkCursor cursor = fleet.store->walk()->cursor();
  EXPECT_EQ(cursor.blocks, 40U);
  EXPECT_EQ(cursor.shards_bad, 10U);
  EXPECT_EQ(cursor.shards_written, 10U);
  EXPECT_EQ(cursor.unreadable, 0U);
  fleet.store->start_walk(WalkKind::kScrub, fleet.now);
  fleet.settle();
  EXPECT_EQ(fleet.store->walk()->cursor().shards_bad, 0U);
  EXPECT_EQ(fleet.store->walk()->progress(fleet.now).done_ratio, 1.0);
}

TEST(StripedStoreTest, AWriteWithTwoTargetsDeadIsDurableAndMendedWhenTheyReturn) {
  Fleet fleet(12);
  fleet.targets[0]->faults.dead = fleet.targets[7]->faults.dead = true;
  for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  EXPECT_EQ(fleet.store->counters().writes_lacking, 20U);
  for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes()));
  fleet.targets[0]->faults.dead = fleet.targets[7]->faults.dead = false;
  fleet.pass(kSecond * 2);
  fleet.settle();
  for (std::uint64_t n = 0; n < 20; ++n) EXPECT_TRUE(fleet.whole(n)) << n;
}

/// Two targets are away while a block is dropped and written again with other bytes, and come back with the
/// shards of the first writing: these must not pass for the second's, or the loss of two others loses the
/// block.
TEST(StripedStoreTest, OldShardsOfTargetsThatReturnAreFoundAndWrittenAnew) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  const Places at = fleet.store->map().of(key_of(1));
  for (const TargetId t : {at[10], at[11]}) fleet.targets[t]->faults.dead = true;
  for (std::uint64_t n = 20; n < 30; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (const TargetId t : {at[10], at[11]}) ASSERT_FALSE(fleet.store->channels().usable(t));
  const BlockKey dropped = key_of(1);
  fleet.store->erase({&dropped, 1}, fleet.now);
  ASSERT_EQ(fleet.write(1, 1), Kind::kWritten);
  for (const TargetId t : {at[10], at[11]}) {
    fleet.targets[t]->restart();
    fleet.targets[t]->faults.dead = false;
  }
  fleet.pass(kSecond * 3);
  fleet.settle();
  EXPECT_GT(fleet.store->counters().shards_other_writing, 0U);
  for (std::uint64_t n = 0; n < 30; ++n) EXPECT_TRUE(fleet.whole(n)) << n;
  for (const TargetId t : {at[0], at[1]}) fleet.targets[t]->faults.dead = true;
  EXPECT_EQ(fleet.read(1), block_of(1, fleet.block_bytes(), 1));
}

/// The moment at which a write that did not wait would have ten shards: two targets are late, and two others
/// are lost with it.
TEST(StripedStoreTest, AWriteWaitsForLateTargetsSoThatAnyTwoMayBeLostOnceItCounts) {
  Fleet fleet(12);
  fleet.targets[2]->faults.slow = fleet.targets[9]->faults.slow = base::Nanos{40'000'000};
  for (std::uint64_t n = 0; n < 12; ++n) {
    ASSERT_EQ(fleet.write(n), Kind::kWritten);
    ASSERT_TRUE(fleet.whole(n)) << "at the moment it counts";
    const auto one = static_cast<std::size_t>(n % 12), other = (one + 5) % 12;
    fleet.targets[one]->faults.dead = fleet.targets[other]->faults.dead = true;
    ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << n;
    fleet.targets[one]->faults.dead = fleet.targets[other]->faults.dead = false;
    fleet.pass(kSecond * 2);
    fleet.settle();
  }
}

TEST(StripedStoreTest, AWriteGoesOnWithoutTargetsThatAreSilent) {
  Fleet fleet(12);
  fleet.targets[2]->faults.hung = fleet.targets[9]->faults.hung = true;
  const base::Nanos before = fleet.now;
  ASSERT_EQ(fleet.write(1), Kind::kWritten);
  EXPECT_LT((fleet.now - before).value, kSecond.value) << "three silences of 50 ms make them dead";
  EXPECT_EQ(fleet.store->counters().writes_lacking, 1U);
  fleet.targets[2]->faults.hung = fleet.targets[9]->faults.hung = false;
  fleet.pass(kSecond * 2);
  fleet.settle();
  EXPECT_TRUE(fleet.whole(1));
}

TEST(StripedStoreTest, UnderThePolicyAllAWriteThatLacksAShardFailsAndLeavesNothing) {
  StoreOptions options = Fleet::small();
  options.write_policy = WritePolicy::kAll;
  Fleet fleet(12, options);
  fleet.targets[3]->faults.dead = true;
  EXPECT_EQ(fleet.write(1), Kind::kWriteFailed);
  fleet.targets[3]->faults.dead = false;
  fleet.pass(kSecond * 4);
  fleet.settle();
  EXPECT_EQ(fleet.read(1), std::nullopt);
  std::uint64_t shards = 0;
  for (auto* target : fleet.targets) shards += target->inner().space()->shards;
  EXPECT_LE(shards, 1U) << "the dead one may have written before it died";
  EXPECT_EQ(fleet.write(1), Kind::kWritten);
  EXPECT_EQ(fleet.read(1), block_of(1, fleet.block_bytes()));
}

TEST(StripedStoreTest, FanInIsBoundedAndTheUrgentGoFirst) {
  StoreOptions options = Fleet::small();
  options.read_bytes_in_flight = 4 * 11 * options.layout.shard_bytes;
  options.targets.target_bytes_in_flight = 2 * options.layout.shard_bytes;
  Fleet fleet(12, options);
  for (std::uint64_t n = 0; n < 60; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  std::vector<std::byte> to(60 * fleet.block_bytes()), urgent(fleet.block_bytes());
  std::vector<StripedStore::BlockRead> batch;
  for (std::uint64_t n = 0; n < 60; ++n)
    batch.push_back({key_of(n), std::span(to).subspan(n * fleet.block_bytes(), fleet.block_bytes())});
  const auto many = fleet.store->read(batch, base::kForever, 0, fleet.now);
  fleet.step(base::Nanos{1});
  const StripedStore::BlockRead one{key_of(59), urgent};
  const auto first = fleet.store->read({&one, 1}, base::kForever, 5, fleet.now);
  std::uint32_t before = 0;
  bool done = false;
  for (bool end = false; !end;) {
    fleet.events.clear();
    fleet.step();
    std::uint64_t all = 0;
    for (TargetId t = 0; t < 12; ++t) {
      const std::uint64_t bytes = fleet.store->channels().bytes_in_flight(t);
      ASSERT_LE(bytes, options.targets.target_bytes_in_flight);
      all += bytes;
    }
    ASSERT_LE(all, options.read_bytes_in_flight + 12 * options.layout.shard_bytes);
    for (const StoreEvent& event : fleet.events) {
      done |= event.handle == first && event.last;
      before += !done && event.handle == many && event.kind == Kind::kRead ? 1 : 0;
      end |= event.handle == many && event.last;
    }
  }
  EXPECT_TRUE(done);
  EXPECT_LE(before, 8U) << "only those already under way";
}

TEST(StripedStoreTest, FullIsAnAnswerAndHarmsNone) {
  Fleet fleet(12, Fleet::small(), 3, 4'000);
  std::uint64_t n = 0;
  while (n < 100 && fleet.write(n) == Kind::kWritten) ++n;
  ASSERT_GT(n, 5U);
  ASSERT_LT(n, 100U);
  EXPECT_EQ(fleet.store->counters().writes_full, 1U);
  fleet.pass(kSecond / 10);
  for (std::uint64_t i = 0; i < n; ++i) EXPECT_EQ(fleet.read(i), block_of(i, fleet.block_bytes()));
  const std::array<BlockKey, 2> some{key_of(0), key_of(1)};
  fleet.store->erase(some, fleet.now);
  EXPECT_EQ(fleet.read(0), std::nullopt);
  fleet.pass(kSecond / 100);
  EXPECT_EQ(fleet.write(200), Kind::kWritten);
  EXPECT_EQ(fleet.store->space().capacity_bytes, 48'000U);
}

}  // namespace
}  // namespace trimtab::kv_store
