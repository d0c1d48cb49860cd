#include "kv_store/store_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/hash.h"
#include "base/prng.h"
#include "kv_store/walk.h"

namespace trimtab::kv_store {
namespace {

BlockKey key_of(std::uint64_t n) { return {base::mix(1, n), base::mix(2, n)}; }

/// Against a plain map, with keys that collide, through growth and removal.
TEST(StoreIndexTest, SaysWhatAPlainMapSays) {
  constexpr std::uint32_t kTargets = 14;
  StoreIndex index(kTargets);
  std::map<BlockKey, Places> truth;
  std::vector<bool> alive(kTargets, true);
  base::Prng prng(5);
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 0; n < 900; ++n) keys.push_back({n, n / 3});  // three to a slot, and neighbours
  for (int i = 0; i < 60'000; ++i) {
    const BlockKey key = keys[prng.below(keys.size())];
    const auto shard = static_cast<std::uint32_t>(prng.below(kShards));
    const auto target = static_cast<TargetId>((shard + prng.below(2)) % kTargets);
    const auto what = prng.below(20);
    auto found = truth.find(key);
    if (what < 15) {
      index.put(key, shard, target, static_cast<TargetId>(shard));
      if (found == truth.end()) {
        found = truth.emplace(key, Places{}).first;
        found->second.fill(kNowhere);
      }
      TargetId& at = found->second[shard];
      if (at == kNowhere || target == shard || !alive[at]) at = target;
    } else if (what < 18) {
      index.erased(key, shard, target);
      if (found != truth.end() && found->second[shard] == target) {
        found->second[shard] = kNowhere;
        if (std::ranges::all_of(found->second, [](TargetId at) { return at == kNowhere; }))
          truth.erase(found);
      }
    } else if (what == 18) {
      index.erase(key);
      truth.erase(key);
    } else if (prng.below(40) == 0) {
      alive[target] = !alive[target];
      index.set_alive(target, alive[target]);
    } else if (prng.below(400) == 0) {
      index.forget(target);
      for (auto it = truth.begin(); it != truth.end();) {
        bool any = false;
        for (TargetId& at : it->second) {
          if (at == target) at = kNowhere;
          any |= at != kNowhere;
        }
        it = any ? std::next(it) : truth.erase(it);
      }
    }
    if (i % 500 != 0) continue;
    ASSERT_EQ(index.blocks(), truth.size());
    const auto answer = index.exists(keys);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const auto held = truth.find(keys[k]);
      std::uint32_t usable = 0;
      if (held != truth.end()) {
        for (const TargetId at : held->second) usable += at != kNowhere && alive[at] ? 1 : 0;
      }
      ASSERT_EQ(answer[k], usable >= 10) << k << " at step " << i;
      ASSERT_EQ(index.find(keys[k]).has_value(), held != truth.end());
      if (held != truth.end()) {
        ASSERT_EQ(*index.find(keys[k]), held->second);
      }
    }
  }
}

TEST(StoreIndexTest, ADeadTargetTakesItsShardsOutAtOnceAndTheEpochTells) {
  StoreIndex index(12);
  for (std::uint64_t n = 0; n < 5; ++n)
    for (std::uint32_t s = 0; s < 11; ++s)
      index.put(key_of(n), s, static_cast<TargetId>(s), static_cast<TargetId>(s));
  std::vector<BlockKey> chain;
  for (std::uint64_t n = 0; n < 5; ++n) chain.push_back(key_of(n));
  EXPECT_EQ(index.leading(chain), 5U);
  const std::uint64_t before = index.exists(chain).epoch;
  index.set_alive(3, false);
  EXPECT_EQ(index.leading(chain), 5U);
  index.set_alive(4, false);
  EXPECT_EQ(index.exists(chain).count, 0U);
  EXPECT_GT(index.epoch(), before);
  index.set_alive(4, true);
  EXPECT_EQ(index.leading(chain), 5U);
  EXPECT_TRUE(index.withdraw(key_of(2)));
  EXPECT_FALSE(index.withdraw(key_of(2)));
  EXPECT_EQ(index.leading(chain), 2U);
  index.put(key_of(2), 0, 0, 0);
  EXPECT_EQ(index.leading(chain), 5U) << "written again";
}

TEST(WalkTest, GoesOnFromItsCursorAndMissesNothing) {
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 0; n < 100; ++n) keys.push_back(key_of(n));
  std::ranges::sort(keys);
  std::map<BlockKey, int> times;
  WalkCursor cursor;
  base::Prng prng(3);
  for (int restarts = 0; restarts < 50; ++restarts) {
    Walk walk(cursor, keys, base::Nanos{0});
    std::vector<BlockKey> under_way;
    for (std::uint64_t steps = prng.below(12); steps > 0; --steps) {
      if (const auto key = walk.next()) under_way.push_back(*key);
      if (under_way.size() < 4 && walk.more()) continue;
      if (under_way.empty()) break;
      const std::size_t which = prng.below(under_way.size());
      ++times[under_way[which]];
      walk.finished(under_way[which], {1, 0, false, 10});
      under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
    }
    cursor = walk.cursor();
  }
  Walk rest(cursor, keys, base::Nanos{0});
  while (const auto key = rest.next()) {
    ++times[*key];
    rest.finished(*key, {});
  }
  EXPECT_TRUE(rest.done());
  EXPECT_EQ(times.size(), keys.size());
}

TEST(PlaceMapTest, EveryFleetHasItsLayoutAndSaysWhatItSurvives) {
  for (const auto& [targets, losses] :
       {std::pair{1U, 0U}, {2U, 0U}, {5U, 0U}, {6U, 1U}, {11U, 1U}, {12U, 2U}, {13U, 2U}, {64U, 2U}}) {
    const auto map = PlaceMap::make(targets);
    ASSERT_TRUE(map) << targets;
    EXPECT_EQ(map->losses(), losses) << targets;
    std::vector<std::uint32_t> shards(targets);
    for (const Places& group : map->stripes().groups) {
      std::vector<std::uint32_t> mine(targets);
      for (const TargetId at : group) {
        ASSERT_LT(at, targets);
        ++shards[at];
        ++mine[at];
      }
      EXPECT_LE(*std::ranges::max_element(mine), (12 + targets - 1) / targets);
    }
    const auto [least, most] = std::ranges::minmax(shards);
    EXPECT_EQ(least, most) << targets;
  }
  EXPECT_FALSE(PlaceMap::make(0));
  EXPECT_FALSE(PlaceMap::make(513));
  const std::array<TargetId, 1> dead{3};
  EXPECT_FALSE(PlaceMap::make(12)->without(dead));
  EXPECT_TRUE(PlaceMap::make(13)->without(dead));
}

}  // namespace
}  // namespace trimtab::kv_store
