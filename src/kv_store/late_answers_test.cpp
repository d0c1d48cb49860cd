// Targets that answer when their readers have long gone on.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

/// An answer that comes after its read was cancelled changes nothing of the reader's memory, and the bytes
/// that wait for a silent target stay within its credit.
TEST(LateAnswers, ThoseOfACancelledReadTouchNothing) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (auto* target : fleet.targets) target->faults.hung = true;
  std::vector<std::byte> to(fleet.block_bytes(), std::byte{0x5a});
  const StripedStore::BlockRead one{key_of(4), to};
  const auto handle = fleet.store->read({&one, 1}, base::kForever, 0, fleet.now);
  fleet.step(base::Nanos{1'000});
  EXPECT_GT(fleet.store->channels().requests_in_flight(), 0U);
  fleet.store->cancel(handle, fleet.now);
  for (auto* target : fleet.targets) target->faults.hung = false;
  fleet.pass(kSecond / 100);
  EXPECT_EQ(fleet.store->channels().requests_in_flight(), 0U);
  EXPECT_TRUE(std::ranges::all_of(to, [](std::byte byte) { return byte == std::byte{0x5a}; }));
  EXPECT_TRUE(fleet.events.empty()) << "a cancelled read says nothing more";
  EXPECT_EQ(fleet.read(4), block_of(4, fleet.block_bytes()));
}

/// LMCache#4517: memory was freed by a timeout, used again, and then written by the transfer that came late.
/// Here few buffers go round, and a target answers when it has long been given up.
TEST(LateAnswers, WhatATargetMayStillWriteIntoIsNotUsedAgain) {
  StoreOptions options = Fleet::small();
  options.memory_bytes = 80 * options.layout.shard_bytes;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Fleet fleet(12, options, seed);
    for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
    fleet.targets[3]->faults.stuck = true;
    for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet.read(n), block_of(n, fleet.block_bytes()));
    fleet.pass(kSecond / 5);
    EXPECT_FALSE(fleet.store->channels().usable(3));
    std::vector<std::byte> to(20 * fleet.block_bytes());
    std::vector<StripedStore::BlockRead> batch;
    for (std::uint64_t n = 0; n < 20; ++n)
      batch.push_back({key_of(n), std::span(to).subspan(n * fleet.block_bytes(), fleet.block_bytes())});
    const auto handle = fleet.store->read(batch, base::kForever, 0, fleet.now);
    for (std::uint64_t steps = 0; steps < 2 + seed; ++steps) fleet.step(base::Nanos{10'000});
    fleet.targets[3]->unstick();
    EXPECT_EQ(fleet.wait(handle).kind, Kind::kRead);
    for (std::uint64_t n = 0; n < 20; ++n)
      ASSERT_TRUE(std::ranges::equal(batch[n].to, block_of(n, fleet.block_bytes()))) << n << " seed " << seed;
    const StoreCounters& seen = fleet.store->counters();
    EXPECT_EQ(seen.shards_corrupt + seen.shards_foreign + seen.shards_short, 0U) << "seed " << seed;
    EXPECT_GT(fleet.store->channels().counters().late, 0U);
  }
}

}  // namespace
}  // namespace trimtab::kv_store
