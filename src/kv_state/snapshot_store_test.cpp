#include "kv_state/snapshot_store.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <thread>
#include <vector>

#include "base/prng.h"

namespace trimtab::kv_state {
namespace {

SnapshotName name(std::uint64_t n) { return {{n, n}, 128 * static_cast<std::int64_t>(n + 1), {7, 7}}; }

std::vector<std::byte> content(std::uint64_t n, std::size_t bytes = 100) {
  base::Prng prng(n);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(prng.next());
  return out;
}

SnapshotStore store_of(std::int64_t bytes) { return {base::Bytes{bytes}, HostId{1}, 1}; }

bool holds(SnapshotStore& store, std::uint64_t n, std::size_t bytes = 100) {
  const auto lease = store.find(name(n));
  return lease && std::ranges::equal(lease->bytes(), content(n, bytes));
}

TEST(SnapshotStore, TheLeastRecentlyUsedGoesFirst) {
  SnapshotStore store = store_of(300);
  for (const std::uint64_t n : {1, 2, 3}) ASSERT_TRUE(store.put(name(n), content(n)));
  EXPECT_TRUE(holds(store, 1));
  ASSERT_TRUE(store.put(name(2), content(2))) << "there already: renewed";
  ASSERT_TRUE(store.put(name(4), content(4)));
  EXPECT_FALSE(holds(store, 3));
  for (const std::uint64_t n : {1, 2, 4}) EXPECT_TRUE(holds(store, n));
  EXPECT_EQ(store.stats().evicted, 1U);
  EXPECT_EQ(store.stats().puts, 4U);
  EXPECT_EQ(store.stats().puts_present, 1U);
  EXPECT_EQ(store.stats().used_bytes.value, 300);
}

TEST(SnapshotStore, EvictionForTheBudgetNeverDropsAPinnedOne) {
  SnapshotStore store = store_of(300);
  for (const std::uint64_t n : {1, 2, 3}) ASSERT_TRUE(store.put(name(n), content(n)));
  {
    const auto oldest = store.find(name(1));
    holds(store, 2), holds(store, 3);  // 1 is the oldest, and referenced
    ASSERT_TRUE(store.put(name(4), content(4, 200)));
    EXPECT_TRUE(std::ranges::equal(oldest->bytes(), content(1)));
    EXPECT_FALSE(holds(store, 2) || holds(store, 3));
    const auto refused = store.put(name(5), content(5, 201));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, base::Code::kResourceExhausted);
    EXPECT_TRUE(holds(store, 4, 200)) << "a refusal evicts nothing";
  }
  EXPECT_TRUE(store.put(name(5), content(5, 201))) << "the reference is gone";
  EXPECT_FALSE(holds(store, 1));
  const auto never = store.put(name(6), content(6, 301));
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, base::Code::kTooLarge);
  EXPECT_EQ(store.stats().puts_refused, 2U);
}

// LMCache#1034: what was looked up and never used stayed pinned until nothing fitted any more.
TEST(SnapshotStore, AReferenceThatIsDroppedUnusedCostsNothing) {
  SnapshotStore store = store_of(100);
  for (std::uint64_t n = 0; n < 50; ++n) {
    ASSERT_TRUE(store.put(name(n), content(n)));
    const auto looked_up = store.find(name(n));
    ASSERT_TRUE(looked_up);
  }
  EXPECT_EQ(store.stats().pinned_bytes.value, 0);
  EXPECT_EQ(store.stats().used_bytes.value, 100);
}

TEST(SnapshotStore, AReferenceOutlivesTheNameAndTheStore) {
  auto store = std::make_unique<SnapshotStore>(base::Bytes{100}, HostId{1}, 1);
  ASSERT_TRUE(store->put(name(1), content(1)));
  auto lease = store->find(name(1));
  EXPECT_TRUE(store->erase(name(1)));
  EXPECT_FALSE(store->erase(name(1)));
  EXPECT_FALSE(store->find(name(1)));
  EXPECT_FALSE(store->put(name(2), content(2))) << "its bytes are still in memory";
  store.reset();
  EXPECT_TRUE(std::ranges::equal(lease->bytes(), content(1)));
}

TEST(SnapshotStore, ACorruptOneIsAMissAndIsDropped) {
  SnapshotStore store = store_of(300);
  ASSERT_TRUE(store.put(name(1), content(1)));
  {
    const auto lease = store.find(name(1));
    const_cast<std::byte&>(lease->bytes()[40]) ^= std::byte{1};
  }
  EXPECT_FALSE(store.find(name(1)));
  EXPECT_EQ(store.stats().corrupt, 1U);
  EXPECT_EQ(store.stats().used_bytes.value, 0);
  EXPECT_FALSE(store.changes_since(0)->changes.back().added) << "the directory hears of it";
  EXPECT_TRUE(store.put(name(1), content(1)));
  EXPECT_TRUE(holds(store, 1));
}

TEST(SnapshotStore, TheDirectoryIsToldOfEveryChangeInOrder) {
  SnapshotStore store(base::Bytes{200}, HostId{3}, 5);
  for (const std::uint64_t n : {1, 2, 3}) ASSERT_TRUE(store.put(name(n), content(n)));
  store.erase(name(2));
  const auto changes = store.changes_since(0);
  ASSERT_TRUE(changes);
  EXPECT_EQ(changes->machine, HostId{3});
  EXPECT_EQ(changes->epoch, 5U);
  EXPECT_EQ(changes->changes,
            (std::vector<kv::SnapshotChange>{
                {true, name(1)}, {true, name(2)}, {false, name(1)}, {true, name(3)}, {false, name(2)}}));
  EXPECT_EQ(store.list(1).names, std::vector<SnapshotName>{name(3)});
}

// Against a list of names, oldest first, and the references that are held.
RC_GTEST_PROP(SnapshotStoreProperty, BehavesLikeAPlainList, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const auto budget = static_cast<std::int64_t>(50 + prng.below(400));
  SnapshotStore store = store_of(budget);
  const auto size_of = [](std::uint64_t n) { return 10 + n * 13 % 90; };
  std::list<std::uint64_t> order;
  std::vector<std::pair<std::uint64_t, SnapshotStore::Lease>> leases;
  const auto referenced = [&](std::uint64_t n) {
    return std::ranges::any_of(leases, [n](const auto& lease) { return lease.first == n; });
  };
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t n = prng.below(12);
    const bool held = std::ranges::find(order, n) != order.end();
    const std::uint64_t what = prng.below(5);
    if (what <= 1) {
      std::int64_t pinned = 0, used = 0;
      for (const std::uint64_t other : order) {
        used += static_cast<std::int64_t>(size_of(other));
        if (referenced(other)) pinned += static_cast<std::int64_t>(size_of(other));
      }
      const auto size = static_cast<std::int64_t>(size_of(n));
      const bool fits = held || pinned + size <= budget;
      RC_ASSERT(store.put(name(n), content(n, size_of(n))).has_value() == fits);
      if (held) order.remove(n);
      for (auto at = order.begin(); fits && !held && used + size > budget;) {
        if (referenced(*at)) {
          ++at;
          continue;
        }
        used -= static_cast<std::int64_t>(size_of(*at));
        at = order.erase(at);
      }
      if (fits) order.push_back(n);
    } else if (what == 2) {
      auto lease = store.find(name(n));
      RC_ASSERT(lease.has_value() == held);
      if (!held) continue;
      order.remove(n);
      order.push_back(n);
      if (prng.below(2) == 0) leases.emplace_back(n, std::move(*lease));
    } else if (what == 3 && !leases.empty()) {
      const std::size_t which = prng.below(leases.size());
      RC_ASSERT(std::ranges::equal(leases[which].second.bytes(),
                                   content(leases[which].first, size_of(leases[which].first))));
      leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (!referenced(n)) {
      RC_ASSERT(store.erase(name(n)) == held);
      order.remove(n);
    }
    std::int64_t used = 0;
    std::vector<SnapshotName> names;
    for (const std::uint64_t other : order) {
      used += static_cast<std::int64_t>(size_of(other));
      names.push_back(name(other));
    }
    std::ranges::sort(names);
    RC_ASSERT(store.list(0).names == names);
    RC_ASSERT(store.stats().used_bytes.value == used && used <= budget);
  }
}

TEST(SnapshotStore, ManyThreadsNeverSeeAnothersContent) {
  SnapshotStore store = store_of(1'500);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      base::Prng prng(t);
      for (int i = 0; i < 2'000; ++i) {
        const std::uint64_t n = prng.below(30);
        if (prng.below(2) == 0) {
          (void)store.put(name(n), content(n));  // refused while the others hold references
        } else if (const auto lease = store.find(name(n))) {
          if (!std::ranges::equal(lease->bytes(), content(n))) ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
  EXPECT_EQ(store.stats().pinned_bytes.value, 0);
  EXPECT_EQ(store.stats().corrupt, 0U);
  EXPECT_LE(store.stats().used_bytes.value, 1'500);
}

}  // namespace
}  // namespace trimtab::kv_state
