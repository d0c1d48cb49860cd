#include "kv_pool/store_tier.h"

#include <gtest/gtest.h>

#include "kv_pool/pool_harness.h"

namespace trimtab::kv_pool {
namespace {

using test::Pool;

/// Puts a block of another model at the targets, as that model's loader would.
void put_stranger(Pool& pool, std::uint64_t n, std::uint64_t bytes) {
  model::KvLayout kv;
  kv.block_bytes = base::Bytes{static_cast<std::int64_t>(bytes)};
  const auto layout = *kv_code::StripeLayout::make(kv);
  std::array<std::vector<std::byte>, kv_code::kShards> shards;
  kv_code::Shards spans;
  for (std::uint32_t s = 0; s < kv_code::kShards; ++s)
    spans[s] = (shards[s].resize(layout.shard_bytes), shards[s]);
  kv_code::write_shards(layout, test::key(n), test::block_of(test::key(n), bytes), spans);
  for (std::uint8_t s = 0; s < kv_code::kShards; ++s) {
    kv_target::Request request;
    request.verb = kv_target::Verb::kWrite;
    request.name = {test::key(n), s};
    request.content = shards[s];
    std::vector<kv_target::Completion> done;
    pool.faulty[s]->inner().submit({&request, 1});
    pool.faulty[s]->inner().poll(done);
    ASSERT_EQ(done.front().outcome, kv_target::Outcome::kDone);
  }
}

/// A fleet that is full of another model's blocks takes this one's, and they leave in turn with its own.
TEST(StoreTier, AnotherModelsBlocksLeaveForWantOfRoomOnly) {
  Pool::Faulty how;
  how.blocks = 9;
  Pool pool(how, 16, 1);
  for (std::uint64_t n = 100; n < 104; ++n) put_stranger(pool, n, 2 * Pool::kBytes);
  const base::Nanos end = pool.clock.now() + base::Nanos{60'000'000'000};
  while (pool.tier->store().index().strangers() < 4 && pool.clock.now() < end) pool.wait();
  EXPECT_EQ(pool.tier->blocks(), 0U);
  pool.put(1, 1);
  pool.settle();
  EXPECT_EQ(pool.tier->evictions(), 0U) << "there is room for one more";
  EXPECT_EQ(pool.tier->store().index().strangers(), 4U);
  for (std::uint64_t n = 2; n <= 5; ++n) {
    pool.put(1, n);
    pool.settle();
    EXPECT_TRUE(pool.tier->present(test::key(n))) << n;
  }
  EXPECT_LT(pool.tier->store().index().strangers(), 4U);
  EXPECT_EQ(pool.store->stats().file_errors, 0U);
}

/// Disks that are full get room by eviction; blocks are not dropped for disks that take nothing either way.
TEST(StoreTier, MakesRoomOnFullDisksAndDropsNothingForBrokenOnes) {
  for (const bool full : {true, false}) {
    Pool::Faulty how;
    how.blocks = 3;
    Pool pool(how, 16, 1);
    for (std::uint64_t n = 1; n <= 3; ++n) {
      pool.put(1, n);
      pool.settle();
    }
    for (const std::uint32_t t : {0U, 4U, 7U}) {  // one more than may be lost
      pool.faulty[t]->faults.says = "No space left on device";
      pool.faulty[t]->faults.lacks_room = full;
    }
    pool.put(1, 4);
    pool.settle();
    EXPECT_EQ(pool.tier->present(test::key(4)), full);
    EXPECT_EQ(pool.tier->evictions(), full ? 1U : 0U);
    EXPECT_EQ(pool.store->stats().memory_only, full ? 0U : 1U);
    EXPECT_EQ(pool.tier->report(pool.clock.now()).targets[4].trouble, "No space left on device");
  }
}

/// Once its time is over a block leaves first, however often it was used; at the targets and in memory alone.
TEST(StoreTier, WhoseTimeIsOverLeavesFirst) {
  for (const bool over : {false, true}) {
    Pool::Faulty how;
    how.blocks = 3;
    how.ttl = over ? base::Nanos{1} : base::kForever;
    Pool pool(how, 16, 1);
    Pool memory_only(3, 0);
    memory_only.store->expire_after(how.ttl);
    for (Pool* one : {&pool, &memory_only}) {
      for (std::uint64_t n = 1; n <= 3; ++n) {
        one->put(1, n);
        one->settle();
      }
      one->match({1});  // LRU would drop the second
      one->put(1, 4);
      one->settle();
    }
    EXPECT_EQ(pool.tier->present(test::key(1)), !over);
    EXPECT_EQ(pool.tier->present(test::key(2)), over);
    EXPECT_EQ(memory_only.match({1}), over ? 0U : 1U);
    EXPECT_EQ(memory_only.match({2}), over ? 1U : 0U);
  }
}

}  // namespace
}  // namespace trimtab::kv_pool
