#include <gtest/gtest.h>

#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

constexpr std::uint64_t kBlocks = 120;

void fill(Fleet& fleet) {
  for (std::uint64_t n = 0; n < kBlocks; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
}

void all_whole_and_right(Fleet& fleet) {
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    ASSERT_TRUE(fleet.whole(n)) << n;
    ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << n;
  }
}

TEST(RebuildTest, AReplacedTargetGetsWhatBelongsToIt) {
  for (const std::uint32_t count : {6U, 12U, 20U}) {
    Fleet fleet(count);
    fill(fleet);
    auto fresh = fleet.make_target(777);
    FaultyTarget* made = fleet.targets.back();
    fleet.targets.pop_back();
    fleet.targets[3] = made;
    fleet.store->replace(3, std::move(fresh), fleet.now);
    const auto progress = fleet.store->walk()->progress(fleet.now);
    EXPECT_EQ(progress.blocks_left, kBlocks);
    fleet.settle();
    EXPECT_EQ(fleet.store->walk()->progress(fleet.now).left, base::Nanos{0});
    EXPECT_GT(made->inner().space()->shards, 0U);
    EXPECT_EQ(fleet.store->counters().shards_repaired, made->inner().space()->shards);
    all_whole_and_right(fleet);
  }
}

TEST(RebuildTest, TwoGivenUpLeaveNoBlockBehindAndReadsAreLevel) {
  Fleet fleet(23);
  fill(fleet);
  const std::array<TargetId, 2> dead{2, 11};
  for (const TargetId t : dead) fleet.targets[t]->faults.dead = true;
  std::vector<std::uint64_t> before;
  for (auto* target : fleet.targets) before.push_back(target->reads);
  ASSERT_TRUE(fleet.store->give_up(dead, fleet.now));
  EXPECT_EQ(fleet.store->map().stripes().version, 2U);
  fleet.settle();
  for (const TargetId t : dead) EXPECT_EQ(fleet.targets[t]->reads, before[t]);
  all_whole_and_right(fleet);
  // Any other two may be lost now.
  fleet.targets[5]->faults.dead = fleet.targets[17]->faults.dead = true;
  for (std::uint64_t n = 0; n < kBlocks; ++n) ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << n;
}

TEST(RebuildTest, AFleetGrowsAndShrinksWithEveryBlockReadableAtEveryStep) {
  Fleet fleet(13);
  fill(fleet);
  std::vector<std::unique_ptr<kv_target::Target>> more;
  for (std::uint64_t i = 0; i < 4; ++i) more.push_back(fleet.make_target(500 + i));
  ASSERT_TRUE(fleet.store->expand(std::move(more), {}, fleet.now));
  std::uint64_t n = 0;
  const auto walking = [&] { return !fleet.store->walk()->done() || fleet.store->repairs_waiting() > 0; };
  while (walking()) {
    ++n;
    ASSERT_EQ(fleet.read(n % kBlocks), block_of(n % kBlocks, fleet.block_bytes())) << "while it grows";
  }
  EXPECT_GT(n, 10U);
  for (std::uint32_t t = 13; t < 17; ++t) EXPECT_GT(fleet.targets[t]->inner().space()->shards, 0U) << t;
  fleet.store->retire_old_copies(fleet.now);
  fleet.pass(kSecond / 10);
  EXPECT_EQ(fleet.store->space().shards, kBlocks * 12) << "each shard once";
  all_whole_and_right(fleet);
  const std::array<TargetId, 2> leaving{0, 14};
  ASSERT_TRUE(fleet.store->drain(leaving, fleet.now));
  while (walking()) {
    ++n;
    ASSERT_EQ(fleet.read(n % kBlocks), block_of(n % kBlocks, fleet.block_bytes())) << "while it shrinks";
  }
  fleet.store->retire_old_copies(fleet.now);
  fleet.pass(kSecond / 10);
  for (const TargetId t : leaving) EXPECT_EQ(fleet.targets[t]->inner().space()->shards, 0U) << t;
  all_whole_and_right(fleet);
}

TEST(RebuildTest, WhatIsBeingWrittenWhenTheMapChangesMovesToo) {
  Fleet fleet(13);
  std::vector<std::vector<std::byte>> blocks;
  std::vector<StripedStore::Handle> handles;
  for (std::uint64_t n = 0; n < kBlocks; ++n) blocks.push_back(block_of(n, fleet.block_bytes()));
  for (FaultyTarget* target : fleet.targets) target->faults.slow = base::Nanos{5'000'000};
  for (std::uint64_t n = 0; n < kBlocks; ++n)
    handles.push_back(fleet.store->write(key_of(n), blocks[n], base::kForever, fleet.now));
  fleet.step(base::Nanos{1'000'000});
  ASSERT_EQ(fleet.store->index().blocks(), 0U) << "all are still on their way";
  std::vector<std::unique_ptr<kv_target::Target>> more;
  for (std::uint64_t i = 0; i < 3; ++i) more.push_back(fleet.make_target(500 + i));
  ASSERT_TRUE(fleet.store->expand(std::move(more), {}, fleet.now));
  for (const auto handle : handles) ASSERT_EQ(fleet.wait(handle).kind, Kind::kWritten);
  fleet.settle();
  for (std::uint64_t n = 0; n < kBlocks; ++n) EXPECT_TRUE(fleet.whole(n)) << "block " << n;
}

TEST(RebuildTest, AWalkGoesOnWhereAnotherStoreLeftIt) {
  StoreOptions options = Fleet::small();
  options.repair_bytes_per_second = 1'000'000;
  Fleet fleet(12, options);
  fill(fleet);
  fleet.store->start_walk(WalkKind::kScrub, fleet.now);
  while (fleet.store->walk()->cursor().blocks < 30) fleet.step();
  const WalkCursor cursor = fleet.store->walk()->cursor();
  const auto progress = fleet.store->walk()->progress(fleet.now);
  EXPECT_GT(progress.left.value, 0);
  EXPECT_LT(progress.done_ratio, 0.5);
  fleet.store->start_walk(WalkKind::kRebuild, fleet.now);
  ASSERT_TRUE(fleet.store->resume_walk(cursor, fleet.now));
  fleet.settle(kSecond * 600);
  const WalkCursor end = fleet.store->walk()->cursor();
  EXPECT_GE(end.blocks, kBlocks);
  EXPECT_LE(end.blocks, kBlocks + options.repair_jobs) << "only what was under way is done twice";
  WalkCursor other = cursor;
  ++other.map_version;
  EXPECT_FALSE(fleet.store->resume_walk(other, fleet.now));
}

TEST(RebuildTest, TheRateOfBackgroundWorkIsKept) {
  StoreOptions options = Fleet::small();
  options.repair_bytes_per_second = 1'000'000;
  Fleet fleet(12, options);
  fill(fleet);
  fleet.store->start_walk(WalkKind::kScrub, fleet.now);
  fleet.settle();
  const base::Nanos begun = fleet.now;
  const std::uint64_t one = fleet.store->walk()->cursor().bytes;
  for (int i = 0; i < 10; ++i) {
    fleet.store->start_walk(WalkKind::kScrub, fleet.now);
    fleet.settle();
  }
  const double seconds = static_cast<double>((fleet.now - begun).value) * 1e-9;
  EXPECT_GT(seconds, (static_cast<double>(one) * 10 - 1.1e6) / 1e6) << "a second's worth may be saved up";
}

/// Two processes wrote one block with other last bits, and neither has ten shards.
TEST(RebuildTest, TwoWritingsThatLeaveNoBlockAreMissingThenWrittenAgain) {
  Fleet fleet(12);
  const Places& home = fleet.store->map().of(key_of(5));
  std::array<std::vector<std::byte>, kShards> bytes;
  for (std::uint64_t version = 0; version < 2; ++version) {
    kv_code::Shards spans;
    for (std::uint32_t s = 0; s < kShards; ++s) {
      bytes[s].resize(Fleet::small().layout.shard_bytes);
      spans[s] = bytes[s];
    }
    kv_code::write_shards(Fleet::small().layout, key_of(5), block_of(5, fleet.block_bytes(), version), spans);
    for (std::uint8_t s = version == 0 ? 0 : 6; s < (version == 0 ? 6 : 12); ++s) {
      kv_target::Request request;
      request.verb = kv_target::Verb::kWrite;
      request.name = {key_of(5), s};
      request.content = bytes[s];
      fleet.targets[home[s]]->inner().submit({&request, 1});
      std::vector<kv_target::Completion> done;
      fleet.targets[home[s]]->inner().poll(done);
    }
  }
  fleet.pass(kSecond / 5);
  EXPECT_TRUE(fleet.store->index().present(key_of(5))) << "twelve shards are listed";
  EXPECT_EQ(fleet.read(5), std::nullopt);
  EXPECT_EQ(fleet.last_read, Kind::kMissing);
  EXPECT_EQ(fleet.store->counters().stale, 1U);
  EXPECT_FALSE(fleet.store->index().present(key_of(5)));
  EXPECT_EQ(fleet.write(5, 1), Kind::kWritten) << "not taken for a duplicate";
  EXPECT_EQ(fleet.read(5), block_of(5, fleet.block_bytes(), 1));
  fleet.pass(kSecond * 3);  // the second look finds a good block and leaves it
  EXPECT_EQ(fleet.read(5), block_of(5, fleet.block_bytes(), 1));
}

TEST(RebuildTest, WhatNobodyWritesAgainIsErasedAtTheSecondLook) {
  Fleet fleet(12);
  ASSERT_EQ(fleet.write(8), Kind::kWritten);
  const Places& home = fleet.store->map().of(key_of(8));
  for (std::uint8_t s = 0; s < 4; ++s) {
    kv_target::Request request;
    request.verb = kv_target::Verb::kErase;
    request.name = {key_of(8), s};
    fleet.targets[home[s]]->inner().submit({&request, 1});
    std::vector<kv_target::Completion> done;
    fleet.targets[home[s]]->inner().poll(done);
  }
  EXPECT_EQ(fleet.read(8), std::nullopt);
  EXPECT_EQ(fleet.store->space().shards, 8U);
  fleet.pass(kSecond * 4);
  EXPECT_EQ(fleet.store->space().shards, 0U);
  EXPECT_EQ(fleet.store->counters().blocks_unreadable, 1U);
}

/// Two models whose pools share their targets, or one that was told the wrong model: neither mends, moves or
/// erases the other's blocks.
TEST(RebuildTest, BlocksOfAnotherModelAreLeftAlone) {
  Fleet fleet(12);
  ASSERT_EQ(fleet.write(1), Kind::kWritten);
  const kv_code::StripeLayout layout = testing::layout_of({5'000, 2'000});
  std::array<std::vector<std::byte>, kShards> bytes;
  kv_code::Shards spans;
  for (std::uint32_t s = 0; s < kShards; ++s) spans[s] = (bytes[s].resize(layout.shard_bytes), bytes[s]);
  kv_code::write_shards(layout, key_of(700), block_of(700, 7'000), spans);
  const Places& home = fleet.store->map().of(key_of(700));
  for (std::uint8_t s = 1; s < kShards; ++s) {  // one is missing, which a rebuild would want to mend
    kv_target::Request request;
    request.verb = kv_target::Verb::kWrite;
    request.name = {key_of(700), s};
    request.content = bytes[s];
    fleet.targets[home[s]]->inner().submit({&request, 1});
    std::vector<kv_target::Completion> done;
    fleet.targets[home[s]]->inner().poll(done);
  }
  fleet.pass(kSecond / 5);
  EXPECT_EQ(fleet.store->index().blocks(), 1U);
  EXPECT_EQ(fleet.store->index().strangers(), 1U);
  EXPECT_FALSE(fleet.store->index().present(key_of(700)));
  for (const WalkKind kind : {WalkKind::kRebuild, WalkKind::kScrub}) {
    fleet.store->start_walk(kind, fleet.now);
    fleet.settle();
    fleet.pass(kSecond * 5);  // beyond the second look at blocks that cannot be read
  }
  EXPECT_EQ(fleet.store->space().shards, 12U + 11U);
  EXPECT_EQ(fleet.store->counters().blocks_unreadable, 0U);
  const BlockKey other = key_of(700);
  fleet.store->erase({&other, 1}, fleet.now);  // for its room
  fleet.pass(kSecond / 5);
  EXPECT_EQ(fleet.store->space().shards, 12U);
  EXPECT_EQ(fleet.store->index().strangers(), 0U);
}

TEST(RebuildTest, TwoWritersOfOneBlockInOneStoreShareOneWriting) {
  Fleet fleet(12);
  const auto a = block_of(3, fleet.block_bytes(), 0), b = block_of(3, fleet.block_bytes(), 1);
  const auto first = fleet.store->write(key_of(3), a, base::kForever, fleet.now);
  const auto second = fleet.store->write(key_of(3), b, base::kForever, fleet.now);
  EXPECT_EQ(fleet.wait(first).kind, Kind::kWritten);
  EXPECT_EQ(fleet.wait(second).kind, Kind::kWritten);
  EXPECT_EQ(fleet.read(3), a);
  EXPECT_EQ(fleet.store->counters().writes_joined, 1U);
  EXPECT_EQ(fleet.write(3, 1), Kind::kWritten);
  EXPECT_EQ(fleet.store->counters().writes_present, 1U);
}

}  // namespace
}  // namespace trimtab::kv_store
