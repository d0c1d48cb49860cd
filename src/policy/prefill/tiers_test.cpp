#include "policy/prefill/tiers.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::EngineId;
using model::TierId;

std::vector<EngineId> engine_ids(std::uint32_t count) {
  std::vector<EngineId> ids;
  for (std::uint32_t i = 0; i < count; ++i) ids.push_back(EngineId{i});
  return ids;
}

std::vector<Nanos> nanos(const std::vector<std::int64_t>& values) {
  std::vector<Nanos> result;
  for (const std::int64_t value : values) result.push_back(Nanos{value});
  return result;
}

TierRange range(std::uint32_t first, std::uint32_t last, std::uint32_t cap) {
  return {TierId{first}, TierId{last}, TierId{cap}};
}

TEST(TierMap, BoundsAreExclusive) {
  const std::vector<std::int64_t> bounds = {16'384, 65'536, 262'144};
  const auto map = TierMap::make(bounds);
  ASSERT_TRUE(map);
  EXPECT_EQ(map->size(), 4U);
  EXPECT_EQ(map->tier_of(TokenCount{16'383}), TierId{0});
  EXPECT_EQ(map->tier_of(TokenCount{16'384}), TierId{1});
  EXPECT_EQ(map->tier_of(TokenCount{65'536}), TierId{2});
  EXPECT_EQ(map->tier_of(TokenCount{262'143}), TierId{2});
  EXPECT_EQ(map->tier_of(TokenCount{262'144}), TierId{3});
  // The worked example: 100,000 tokens of context, whatever of it hits.
  EXPECT_EQ(map->name(map->tier_of(TokenCount{100'000})), "64K-256K");
  EXPECT_EQ(map->name(TierId{0}), "<16K");
  EXPECT_EQ(map->name(TierId{3}), ">=256K");
}

TEST(TierMap, RefusesBoundsThatDoNotAscend) {
  EXPECT_FALSE(TierMap::make(std::vector<std::int64_t>{4, 4}));
  EXPECT_FALSE(TierMap::make(std::vector<std::int64_t>{0}));
  EXPECT_FALSE(TierMap::make(std::vector<std::int64_t>(16, 1)));
  const auto one = TierMap::make(std::vector<std::int64_t>{});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->size(), 1U);
  EXPECT_EQ(one->tier_of(TokenCount{INT64_MAX}), TierId{0});
}

TEST(TierAllocator, InProportionByLargestRemainder) {
  TierAllocator allocator(4);
  // 10 engines for shares of 5.5, 2.8, 1.2, 0.5: the smallest gets its one, the others share nine.
  const auto decision = allocator.decide(engine_ids(10), nanos({55, 28, 12, 5}));
  EXPECT_EQ(decision.engines_of, (std::vector<std::uint32_t>{5, 3, 1, 1}));
  EXPECT_TRUE(decision.changed);
  EXPECT_DOUBLE_EQ(decision.ideal_engines[0], 5.5);
  EXPECT_NE(decision.reason.find("largest remainder"), std::string::npos);
}

TEST(TierAllocator, ABurstMovesEnginesInTheNextRound) {
  // Section 16, row 1: a tier bursts (many agents beyond 256K); the next round re-allocates by quota demand.
  TierAllocator allocator(4);
  EXPECT_EQ(allocator.decide(engine_ids(8), nanos({40, 30, 20, 10})).engines_of,
            (std::vector<std::uint32_t>{3, 2, 2, 1}));
  const auto burst = allocator.decide(engine_ids(8), nanos({40, 30, 20, 270}));
  EXPECT_TRUE(burst.changed);
  EXPECT_EQ(burst.engines_of, (std::vector<std::uint32_t>{1, 1, 1, 5}));
  const auto over = allocator.decide(engine_ids(8), nanos({40, 30, 20, 10}));
  EXPECT_EQ(over.engines_of, (std::vector<std::uint32_t>{3, 2, 2, 1}));
}

TEST(TierAllocator, HysteresisKeepsWhatIsNearlyRight) {
  TierAllocator allocator(2);
  EXPECT_EQ(allocator.decide(engine_ids(4), nanos({50, 50})).engines_of, (std::vector<std::uint32_t>{2, 2}));
  // Shares of 2.6 and 1.4: rounding alone would move an engine, back and forth as demand flickers.
  const auto kept = allocator.decide(engine_ids(4), nanos({65, 35}));
  EXPECT_EQ(kept.engines_of, (std::vector<std::uint32_t>{2, 2}));
  EXPECT_FALSE(kept.changed);
  EXPECT_NE(kept.reason.find("hysteresis"), std::string::npos);
  EXPECT_EQ(allocator.decide(engine_ids(4), nanos({70, 30})).engines_of, (std::vector<std::uint32_t>{3, 1}));
}

TEST(TierAllocator, MovesNoMoreEnginesThanItMust) {
  TierAllocator allocator(3);
  const auto before = allocator.decide(engine_ids(9), nanos({30, 30, 30}));
  const auto after = allocator.decide(engine_ids(9), nanos({50, 30, 10}));
  EXPECT_EQ(after.engines_of, (std::vector<std::uint32_t>{5, 3, 1}));
  int moved = 0;
  for (std::size_t i = 0; i < 9; ++i) moved += before.engines[i] == after.engines[i] ? 0 : 1;
  EXPECT_EQ(moved, 2);
  EXPECT_EQ(after.engines[6].range.first, TierId{2}) << "the lowest id stays";
}

TEST(TierAllocator, FewerEnginesThanTiersServeNeighboursUnderTheLargersCap) {
  TierAllocator allocator(4);
  const auto decision = allocator.decide(engine_ids(2), nanos({10, 20, 30, 50}));
  // {10, 20, 30} and {50}: the busiest has 60; {10, 20} and {30, 50} would make it 80.
  EXPECT_EQ(decision.engines[0].range, range(0, 2, 2));
  EXPECT_EQ(decision.engines[1].range, range(3, 3, 3));
  const auto one = TierAllocator(4).decide(engine_ids(1), nanos({10, 20, 30, 50}));
  EXPECT_EQ(one.engines[0].range, range(0, 3, 3));
}

TEST(TierAllocator, TiersWithoutDemandAreServedByTheNextLonger) {
  TierAllocator allocator(4);
  const auto decision = allocator.decide(engine_ids(4), nanos({0, 60, 0, 60}));
  EXPECT_EQ(decision.engines[0].range, range(0, 1, 1));
  EXPECT_EQ(decision.engines[3].range, range(2, 3, 3));
  const auto shorter = TierAllocator(4).decide(engine_ids(2), nanos({10, 10, 0, 0}));
  EXPECT_EQ(shorter.engines[0].range, range(0, 0, 0));
  EXPECT_EQ(shorter.engines[1].range, range(1, 3, 1)) << "and the longest ones by the longest with demand";
}

TEST(TierAllocator, NoDemandAndNoEngines) {
  TierAllocator allocator(3);
  EXPECT_TRUE(allocator.decide({}, nanos({1, 2, 3})).engines.empty());
  const auto all = allocator.decide(engine_ids(2), nanos({0, 0, 0}));
  EXPECT_EQ(all.engines[0].range, range(0, 2, 0));
  EXPECT_EQ(all.engines[1].range, range(0, 2, 0));
  allocator.decide(engine_ids(2), nanos({5, 5, 0}));
  EXPECT_FALSE(allocator.decide(engine_ids(2), nanos({0, 0, 0})).changed) << "a quiet round changes nothing";
}

TEST(TierAllocator, ALostEngineIsReplacedAtOnce) {
  TierAllocator allocator(2);
  allocator.decide(engine_ids(3), nanos({10, 20}));
  const std::vector<EngineId> left = {EngineId{1}, EngineId{2}};
  const auto decision = allocator.decide(left, nanos({10, 20}));
  EXPECT_EQ(decision.engines_of, (std::vector<std::uint32_t>{1, 1}));
}

void expect_covered(const Allocation& decision, std::uint32_t engines, std::uint32_t tiers) {
  ASSERT_EQ(decision.engines.size(), engines);
  for (std::uint32_t t = 0; t < tiers; ++t) {
    ASSERT_GT(decision.engines_of[t], 0U) << decision.reason;
  }
  for (const EngineTiers& each : decision.engines) {
    ASSERT_LE(each.range.first, each.range.last);
    ASSERT_TRUE(each.range.contains(each.range.cap));
  }
}

/// Every way to give `engines` to the tiers in demand, one at least each: the least sum of squared distances
/// to the shares (one engine for tiers whose proportion is below one, the rest in proportion).
double least_squares(const std::vector<std::int64_t>& demand, int engines, std::vector<double>& shares) {
  shares.assign(demand.size(), 0);
  std::vector<bool> fixed(demand.size());
  for (;;) {
    double left = engines, sum = 0;
    for (std::size_t t = 0; t < demand.size(); ++t) {
      if (fixed[t]) left -= 1;
      if (!fixed[t]) sum += static_cast<double>(demand[t]);
    }
    bool again = false;
    for (std::size_t t = 0; t < demand.size(); ++t) {
      if (demand[t] == 0) continue;
      shares[t] = fixed[t] ? 1 : left * static_cast<double>(demand[t]) / sum;
      if (shares[t] < 1 - 1e-9) again = fixed[t] = true;
    }
    if (!again) break;
  }
  double best = 1e9;
  std::vector<int> counts(demand.size());
  const std::function<void(std::size_t, int)> each = [&](std::size_t t, int left) {
    if (t == demand.size()) {
      double sum = left == 0 ? 0 : 1e9;
      for (std::size_t i = 0; i < counts.size(); ++i)
        sum += (counts[i] - shares[i]) * (counts[i] - shares[i]);
      best = std::min(best, sum);
      return;
    }
    const int from = demand[t] > 0 ? 1 : 0, to = demand[t] > 0 ? left : 0;
    for (counts[t] = from; counts[t] <= to; ++counts[t]) each(t + 1, left - counts[t]);
  };
  each(0, engines);
  return best;
}

TEST(TierAllocator, EverySmallCaseIsTheBestRoundingOrTheBestGrouping) {
  int cases = 0;
  for (std::uint32_t engines = 1; engines <= 6; ++engines) {
    for (int code = 1; code < 5 * 5 * 5 * 5; ++code) {
      const std::vector<std::int64_t> demand = {code % 5, code / 5 % 5, code / 25 % 5, code / 125};
      const auto in_demand = static_cast<std::uint32_t>(
          std::count_if(demand.begin(), demand.end(), [](auto d) { return d > 0; }));
      const auto decision = TierAllocator(4).decide(engine_ids(engines), nanos(demand));
      expect_covered(decision, engines, 4);
      ++cases;
      if (engines >= in_demand) {
        std::vector<double> shares;
        const double best = least_squares(demand, static_cast<int>(engines), shares);
        double mine = 0;
        for (std::uint32_t t = 0; t < 4; ++t) {
          const auto has = std::count_if(
              decision.engines.begin(), decision.engines.end(),
              [&](const EngineTiers& each) { return demand[t] > 0 && each.range.cap == TierId{t}; });
          mine += (static_cast<double>(has) - shares[t]) * (static_cast<double>(has) - shares[t]);
        }
        ASSERT_NEAR(mine, best, 1e-6) << decision.reason;
      } else {
        std::int64_t busiest = 0, best = INT64_MAX;
        for (const EngineTiers& each : decision.engines) {
          std::int64_t load = 0;
          for (auto t = each.range.first.value; t <= each.range.last.value; ++t) load += demand[t];
          busiest = std::max(busiest, load);
        }
        for (int cuts = 0; cuts < 8; ++cuts) {  // a cut after tier 0, 1, 2 or not
          std::int64_t load = 0, most = 0;
          std::uint32_t runs = 1;
          for (std::uint32_t t = 0; t < 4; ++t) {
            load += demand[t];
            most = std::max(most, load);
            if (t < 3 && (cuts >> t & 1) != 0) {
              load = 0;
              ++runs;
            }
          }
          if (runs == engines) best = std::min(best, most);
        }
        ASSERT_EQ(busiest, best) << decision.reason;
      }
    }
  }
  EXPECT_EQ(cases, 6 * 624);
}

RC_GTEST_PROP(TierAllocator, ATierIsNeverWithoutAnEngine, ()) {
  const auto tiers = *rc::gen::inRange<std::uint32_t>(1, 7);
  TierAllocator allocator(tiers);
  for (int round = 0; round < 12; ++round) {
    std::vector<EngineId> engines;
    for (std::uint32_t id = 0; id < 12; ++id) {
      if (*rc::gen::inRange(0, 3) > 0) engines.push_back(EngineId{id});
    }
    std::vector<Nanos> demand;
    for (std::uint32_t t = 0; t < tiers; ++t) {
      demand.push_back(
          Nanos{*rc::gen::element<std::int64_t>(0, 1, 1'000'000, 900'000'000'000, INT64_MAX / 16)});
    }
    const auto decision = allocator.decide(engines, demand);
    RC_ASSERT(decision.engines.size() == engines.size());
    for (std::uint32_t t = 0; t < tiers && !engines.empty(); ++t) RC_ASSERT(decision.engines_of[t] > 0U);
    // What did not change must be said not to have.
    const auto again = allocator.decide(engines, demand);
    RC_ASSERT(!again.changed);
    RC_ASSERT(again.engines == decision.engines);
  }
}

}  // namespace
}  // namespace trimtab::policy
