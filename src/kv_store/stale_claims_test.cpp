// What the index claims and cannot be had: places that list what they do not give, blocks that go while they
// are read, writes that end halfway.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv_store/testing/fleet.h"
#include "kv_store/testing/shared_target.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

/// Mooncake#2704, sglang PR#31315: three targets answer for themselves, list their shards, take new ones, and
/// cannot be read. Requests keep asking for what is claimed, and others keep writing.
void expect_sick_targets_to_be_left_alone(bool FaultyTarget::Faults::*how) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (const std::uint32_t t : {1U, 4U, 9U}) fleet.targets[t]->faults.*how = true;
  std::uint64_t in_vain = 0;
  for (std::uint64_t second = 0; second < 300; ++second) {
    for (std::uint64_t n = 0; n < 10; ++n) {
      if (!fleet.store->index().present(key_of(n))) continue;
      ++in_vain;
      ASSERT_EQ(fleet.read(n), std::nullopt);
    }
    fleet.write(100 + second);
    fleet.pass(kSecond);
  }
  EXPECT_LE(in_vain, 3U) << "each of them may be asked three times before it counts as dead";
  for (auto* target : fleet.targets) {
    target->faults.sick = false;
    target->unstick();
  }
  fleet.pass(kSecond * 40);  // probes are up to 30 s apart
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_EQ(fleet.read(n), block_of(n, fleet.block_bytes())) << n;
}

TEST(StaleClaims, TargetsWhoseReadsFailAreNotBelievedAgain) {
  expect_sick_targets_to_be_left_alone(&FaultyTarget::Faults::sick);
}

TEST(StaleClaims, TargetsWhoseReadsHangAreNotBelievedAgain) {
  expect_sick_targets_to_be_left_alone(&FaultyTarget::Faults::stuck);
}

/// A disk that takes writes proves nothing of its reads: those that fail count whatever comes between them.
TEST(StaleClaims, WritesBetweenFailedReadsDoNotKeepATargetAlive) {
  Fleet fleet(12);
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_EQ(fleet.write(n), Kind::kWritten);
  for (const std::uint32_t t : {1U, 4U, 9U}) fleet.targets[t]->faults.sick = true;
  const auto block = block_of(100, fleet.block_bytes());
  std::vector<std::byte> to(fleet.block_bytes());
  std::uint64_t in_vain = 0;
  for (std::uint64_t n = 0, other = 100; n < 10 && fleet.store->index().present(key_of(n)); ++n, ++in_vain) {
    const StripedStore::BlockRead one{key_of(n), to};
    const auto handle = fleet.store->read({&one, 1}, base::kForever, 0, fleet.now);
    const auto over = [&] {
      return std::ranges::any_of(fleet.events,
                                 [&](const StoreEvent& e) { return e.handle == handle && e.last; });
    };
    for (std::uint64_t step = 0; !over(); ++step) {
      if (step % 4 == 0) fleet.store->write(key_of(other++), block, base::kForever, fleet.now);
      fleet.step(base::Nanos{50'000});
    }
    EXPECT_NE(fleet.wait(handle).kind, Kind::kRead);
  }
  EXPECT_LE(in_vain, 3U);
  EXPECT_EQ(fleet.store->counters().targets_died, 3U);
}

/// Mooncake#4239: evicted, by another machine that knows of no reader, while it is read; and its name given
/// to another writing. The read gives one of the two or nothing.
TEST(StaleClaims, ABlockThatGoesWhileItIsReadIsRightOrMissing) {
  std::uint64_t old_ones = 0, new_ones = 0, missing = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Fleet fleet(12, Fleet::small(), seed);
    ASSERT_EQ(fleet.write(1), Kind::kWritten);
    const Places home = fleet.store->map().of(key_of(1));
    std::array<std::vector<std::byte>, kShards> bytes;
    kv_code::Shards spans;
    for (std::uint32_t s = 0; s < kShards; ++s) {
      bytes[s].resize(Fleet::small().layout.shard_bytes);
      spans[s] = bytes[s];
    }
    const auto other = block_of(1, fleet.block_bytes(), 1);
    kv_code::write_shards(Fleet::small().layout, key_of(1), other, spans);
    std::vector<std::byte> to(fleet.block_bytes());
    const StripedStore::BlockRead one{key_of(1), to};
    const auto handle = fleet.store->read({&one, 1}, base::kForever, 0, fleet.now);
    base::Prng prng(seed, 8);
    const bool again = prng.below(2) == 0;
    for (std::uint8_t s = 0; s < kShards; ++s) {
      for (std::uint64_t steps = prng.below(1 + seed % 12); steps > 0; --steps)
        fleet.step(base::Nanos{20'000});
      kv_target::Request request;
      request.verb = again ? kv_target::Verb::kWrite : kv_target::Verb::kErase;
      request.name = {key_of(1), s};
      request.content = bytes[s];
      std::vector<kv_target::Completion> done;
      fleet.targets[home[s]]->inner().submit({&request, 1});
      fleet.targets[home[s]]->inner().poll(done);
    }
    const Kind kind = fleet.wait(handle).kind;
    if (kind != Kind::kRead) {
      ASSERT_EQ(kind, Kind::kMissing);
      ++missing;
      continue;
    }
    const bool old = to == block_of(1, fleet.block_bytes());
    ASSERT_TRUE(old || (again && to == other)) << "seed " << seed;
    ++(old ? old_ones : new_ones);
  }
  EXPECT_GT(std::min({old_ones, new_ones, missing}), 3U) << old_ones << ' ' << new_ones << ' ' << missing;
}

/// LMCache#4991: a store that failed leaves its key visible. Nine shards of this one were durable.
TEST(StaleClaims, AWriteThatFailsHalfwayIsClaimedByNobody) {
  std::vector<std::shared_ptr<testing::SharedContent>> contents;
  for (std::uint64_t t = 0; t < 12; ++t) contents.push_back(std::make_shared<testing::SharedContent>());
  const auto open = [&] {
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    for (const auto& content : contents) targets.push_back(std::make_unique<testing::SharedTarget>(content));
    auto store = StripedStore::open(std::move(targets), Fleet::small(), base::Nanos{1});
    EXPECT_TRUE(store.has_value());
    return std::move(*store);
  };
  std::uint64_t stored = 0;
  for (auto& content : contents)
    content->refuse = [&, sick = content == contents[2] || content == contents[5] ||
                                 content == contents[8]](const kv_target::Request& request) {
      stored += request.verb == kv_target::Verb::kWrite && !sick ? 1 : 0;
      return request.verb == kv_target::Verb::kWrite && sick;
    };
  const auto store = open();
  const auto block = block_of(1, 1'400);
  store->write(key_of(1), block, base::kForever, base::Nanos{2});
  std::vector<StoreEvent> events;
  for (std::int64_t now = 2; now < 1'000 && events.empty(); ++now) store->poll(base::Nanos{now}, events);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, Kind::kWriteFailed);
  EXPECT_EQ(stored, 9U);
  for (std::int64_t now = 1'000; now < 1'010; ++now) store->poll(base::Nanos{now}, events);
  EXPECT_FALSE(store->index().present(key_of(1)));
  EXPECT_EQ(store->space().shards, 0U) << "what was written is erased";
  const auto other = open();
  EXPECT_FALSE(other->index().present(key_of(1))) << "nor does another machine find it";
}

}  // namespace
}  // namespace trimtab::kv_store
