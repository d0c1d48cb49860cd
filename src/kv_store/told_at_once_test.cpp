#include <gtest/gtest.h>

#include <algorithm>

#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

/// Targets that answer as fast as they are asked must not keep the first layers from whoever waits for them
/// until the last layers are there too.
TEST(ToldAtOnceTest, OfManyReadsFromFastTargetsTheStoreTellsBitByBit) {
  constexpr std::uint64_t kBlocks = 300, kMostAtOnce = 100;
  StoreOptions options = Fleet::small();
  const std::size_t bytes = options.layout.block_bytes;
  options.memory_bytes = 2 * kBlocks * kShards * options.layout.shard_bytes;
  options.targets.target_bytes_in_flight = 2 * options.layout.shard_bytes;
  std::vector<std::unique_ptr<kv_target::Target>> targets;
  for (std::uint64_t t = 0; t < kShards; ++t)
    targets.push_back(std::make_unique<kv_target::MemoryTarget>(
        kv_target::MemoryTarget::Options{64ULL << 20, 16ULL << 20, 1 + t}));
  const base::Nanos now{1'000'000'000};
  auto store = StripedStore::open(std::move(targets), options, now);
  ASSERT_TRUE(store.has_value()) << store.error().message;

  std::vector<StoreEvent> events;
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    const auto block = block_of(n, bytes);
    (*store)->write(key_of(n), block, base::kForever, now);
    while (!(*store)->idle()) (*store)->poll(now, events);
  }
  ASSERT_EQ(events.size(), kBlocks);

  std::vector<std::byte> to(kBlocks * bytes);
  std::vector<StripedStore::BlockRead> batch;
  for (std::uint64_t n = 0; n < kBlocks; ++n)
    batch.push_back({key_of(n), std::span(to).subspan(n * bytes, bytes)});
  (*store)->read(batch, base::kForever, 0, now);
  std::size_t first_layers = 0, wholes_before = 0;
  for (bool end = false; !end;) {
    events.clear();
    (*store)->poll(now, events);
    ASSERT_LT(events.size(), kMostAtOnce);
    ASSERT_FALSE(events.empty());
    for (const StoreEvent& event : events) {
      first_layers += event.kind == Kind::kLayers ? 1 : 0;
      wholes_before += event.kind == Kind::kRead && first_layers < kBlocks ? 1 : 0;
      end |= event.last;
    }
    ASSERT_TRUE(end || (*store)->next_wake().value == 0) << "it must say that there is more to do";
  }
  EXPECT_EQ(first_layers, kBlocks);
  EXPECT_LT(wholes_before, kBlocks / 4);
  for (std::uint64_t n = 0; n < kBlocks; ++n)
    ASSERT_TRUE(std::ranges::equal(batch[n].to, block_of(n, bytes))) << n;
}

}  // namespace
}  // namespace trimtab::kv_store
