// A store over one target: all shards of a block lie there.
#include <gtest/gtest.h>

#include "kv_store/striped_store.h"
#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using testing::block_of;
using testing::Fleet;

TEST(SingleTargetTest, TenShardsAreAskedForAndNoHedge) {
  Fleet fleet(1);
  ASSERT_EQ(fleet.write(1), StoreEvent::Kind::kWritten);
  fleet.settle();
  constexpr std::uint64_t kPieces = 2;
  const auto asked = [&] { return fleet.store->channels().counters().requests; };
  std::uint64_t before = asked();
  ASSERT_EQ(fleet.read(1), block_of(1, fleet.block_bytes()));
  EXPECT_EQ(asked() - before, kPieces * kv_code::kData);
  fleet.targets[0]->faults.slow = base::Nanos{30'000'000};
  before = asked();
  ASSERT_EQ(fleet.read(1), block_of(1, fleet.block_bytes()));
  EXPECT_EQ(asked() - before, kPieces * kv_code::kData) << "no hedge: it would be as slow";
  EXPECT_EQ(fleet.store->counters().hedges, 0U);
}

}  // namespace
}  // namespace trimtab::kv_store
