#include "kv/prefix_index.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace trimtab::kv {
namespace {

BlockKey key(std::uint64_t n) { return {n * 0x9e3779b97f4a7c15ULL, n}; }

std::vector<std::uint64_t> order(const PrefixIndex& index) {
  std::vector<std::uint64_t> lows;
  for (const auto& entry : index.entries()) lows.push_back(entry.key.low);
  return lows;
}

TEST(PrefixIndex, LongestPrefixStopsAtTheFirstGap) {
  PrefixIndex index(8);
  for (const std::uint64_t n : {1, 2, 4}) EXPECT_TRUE(index.insert(key(n), 0));
  const std::vector<BlockKey> chain = {key(1), key(2), key(3), key(4)};
  EXPECT_EQ(index.longest_prefix(chain), 2U);
  EXPECT_EQ(index.longest_prefix(std::span{chain}.subspan(2)), 0U);
  EXPECT_EQ(index.longest_prefix({}), 0U);
}

TEST(PrefixIndex, BoundedAndWithoutDuplicates) {
  PrefixIndex index(2);
  EXPECT_TRUE(index.insert(key(1), 7));
  EXPECT_FALSE(index.insert(key(1), 8)) << "present";
  EXPECT_EQ(index.find(key(1))->value, 7U);
  EXPECT_TRUE(index.insert(key(2), 0));
  EXPECT_FALSE(index.insert(key(3), 0)) << "full";
  EXPECT_TRUE(index.erase(key(1)));
  EXPECT_FALSE(index.erase(key(1)));
  EXPECT_TRUE(index.insert(key(3), 0));
}

// The end of a chain is useless without its head, never the other way round.
TEST(PrefixIndex, AChainIsEvictedFromItsEnd) {
  PrefixIndex index(8);
  index.insert(key(9), 0);
  index.insert(key(1), 0);
  index.insert(key(2), 0, key(1));
  index.insert(key(3), 0, key(2));
  EXPECT_EQ(order(index), (std::vector<std::uint64_t>{9, 3, 2, 1}));
  index.touch(std::vector{key(9)});
  EXPECT_EQ(order(index), (std::vector<std::uint64_t>{3, 2, 1, 9}));
  index.touch(std::vector{key(1), key(2), key(5), key(3)});
  EXPECT_EQ(order(index), (std::vector<std::uint64_t>{9, 3, 2, 1}));
}

TEST(PrefixIndex, OldestSkipsWhatMayNotGo) {
  PrefixIndex index(8);
  for (const std::uint64_t n : {1, 2, 3}) index.insert(key(n), static_cast<std::uint32_t>(n));
  const auto oldest = index.oldest([](const auto& entry) { return entry.value != 1; });
  EXPECT_EQ(oldest->key, key(2));
  EXPECT_FALSE(index.oldest([](const auto&) { return false; }));
}

// A complaint about an entry that was seen must not take away the one stored after it (dynamo PR#11190).
TEST(PrefixIndex, AWithdrawalSparesWhatCameLater) {
  PrefixIndex index(8, 1000);
  index.insert(key(1), 0);
  const std::uint64_t seen = index.epoch();
  EXPECT_GT(seen, 1000U);
  index.erase(key(1));
  index.insert(key(1), 1);
  EXPECT_FALSE(index.withdraw(key(1), seen));
  EXPECT_TRUE(index.find(key(1)));
  EXPECT_TRUE(index.withdraw(key(1), index.epoch()));
  EXPECT_FALSE(index.find(key(1)));
  EXPECT_FALSE(index.withdraw(key(1), index.epoch()));
}

/// The same by the plainest means: a list, oldest first.
struct Reference {
  std::vector<PrefixIndex::Entry> entries;
  std::uint32_t capacity;
  std::uint64_t epoch = 0;

  auto find(BlockKey k) {
    return std::find_if(entries.begin(), entries.end(), [k](const auto& e) { return e.key == k; });
  }
  bool insert(BlockKey k, std::uint32_t value, std::optional<BlockKey> parent) {
    if (find(k) != entries.end() || entries.size() == capacity) return false;
    const auto place = parent ? find(*parent) : entries.end();
    entries.insert(place, {k, value, ++epoch});
    return true;
  }
  bool erase(BlockKey k) {
    const auto at = find(k);
    if (at == entries.end()) return false;
    entries.erase(at);
    ++epoch;
    return true;
  }
  void touch(BlockKey k) {
    const auto at = find(k);
    if (at == entries.end()) return;
    const auto entry = *at;
    entries.erase(at);
    entries.push_back(entry);
  }
};

// Keys whose low bits collide on purpose: runs of cells that wrap around must survive removals.
RC_GTEST_PROP(PrefixIndexProperty, BehavesLikeAPlainList, ()) {
  const auto capacity = *rc::gen::inRange<std::uint32_t>(1, 20);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  base::Prng prng(seed);
  PrefixIndex index(capacity);
  Reference reference{{}, capacity};
  const auto any_key = [&prng] { return BlockKey{prng.below(12), prng.below(3) * 64 + 62 + prng.below(2)}; };
  for (int i = 0; i < 300; ++i) {
    const BlockKey k = any_key();
    switch (prng.below(4)) {
      case 0: {
        const std::optional<BlockKey> parent = prng.below(2) == 0 ? std::nullopt : std::optional(any_key());
        const auto value = static_cast<std::uint32_t>(i);
        RC_ASSERT(index.insert(k, value, parent) == reference.insert(k, value, parent));
        break;
      }
      case 1:
        RC_ASSERT(index.erase(k) == reference.erase(k));
        break;
      case 2:
        index.touch(std::vector{k});
        reference.touch(k);
        break;
      default:
        RC_ASSERT(index.find(k).has_value() == (reference.find(k) != reference.entries.end()));
    }
    const auto entries = index.entries();
    RC_ASSERT(entries.size() == reference.entries.size());
    RC_ASSERT(index.size() == entries.size());
    RC_ASSERT(index.epoch() == reference.epoch);
    for (std::size_t e = 0; e < entries.size(); ++e) {
      RC_ASSERT(entries[e].key == reference.entries[e].key);
      RC_ASSERT(entries[e].value == reference.entries[e].value);
      RC_ASSERT(entries[e].epoch == reference.entries[e].epoch);
      RC_ASSERT(index.find(entries[e].key)->value == entries[e].value);
    }
  }
}

}  // namespace
}  // namespace trimtab::kv
