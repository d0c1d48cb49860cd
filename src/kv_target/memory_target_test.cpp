#include "kv_target/memory_target.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "kv_target/testing/conformance.h"
#include "kv_target/testing/conformance_tests.h"

namespace trimtab::kv_target::testing {

INSTANTIATE_TEST_SUITE_P(
    Memory, TargetConformance,
    ::testing::Values(Maker{
        "memory",
        [](std::uint64_t bytes) {
          return std::make_unique<MemoryTarget>(MemoryTarget::Options{bytes, 1U << 20, 1});
        },
        nullptr}));

/// Erases are forgotten early here; a follower that comes by seldom, and in small pages, must end with the
/// truth.
RC_GTEST_PROP(ChangeFeed, AFollowerEndsWithTheTruth, ()) {
  ChangeFeed feed(9, *rc::gen::inRange<std::size_t>(0, 6));
  std::map<ShardName, std::uint32_t> truth, told;
  Cursor cursor;
  const auto page = [&](std::uint32_t limit) {
    const Changes answer = feed.since(cursor, limit);
    if (answer.complete) told.clear();
    for (const Change& change : answer.changes) {
      if (change.bytes == 0)
        told.erase(change.name);
      else
        told[change.name] = change.bytes;
    }
    cursor = answer.next;
    return answer.more;
  };
  for (const auto& [n, action] : *rc::gen::container<std::vector<std::pair<std::uint64_t, int>>>(
           rc::gen::pair(rc::gen::inRange<std::uint64_t>(0, 12), rc::gen::inRange(0, 5)))) {
    const ShardName name = shard_name(n);
    if (action < 2) {
      feed.put(name, 10 + static_cast<std::uint32_t>(n));
      truth[name] = 10 + static_cast<std::uint32_t>(n);
    } else if (action < 4) {
      feed.erased(name);
      truth.erase(name);
    } else {
      page(2);
    }
  }
  int pages = 0;
  while (page(3)) RC_ASSERT(++pages < 1'000);
  RC_ASSERT(told == truth);
}

TEST(ChangeFeed, AnotherOpeningIsToldAnew) {
  ChangeFeed feed(2);
  feed.put(shard_name(1), 5);
  const Changes answer = feed.since({1, 100, 1}, 10);
  EXPECT_TRUE(answer.complete);
  ASSERT_EQ(answer.changes.size(), 1U);
  EXPECT_EQ(answer.changes[0].name, shard_name(1));
}

}  // namespace trimtab::kv_target::testing
