#include "policy/decode/rank_index.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace trimtab::policy {
namespace {

struct Naive {
  std::int64_t running = 0, kv = 0;
  std::uint32_t slot = 0;
};

constexpr std::int64_t kHeadroom = 130;
constexpr DecodeCapacity kCapacity{TokenCount{20'000}, 6, 1000};

bool has_room(const Naive& rank, std::int64_t tokens) {
  return rank.running < kCapacity.max_running &&
         rank.kv + tokens + kHeadroom * (rank.running + 1) <= kCapacity.kv.value;
}

void expect_same(const RankIndex::Best& best, const std::vector<DecodeLoad>& expected) {
  RC_ASSERT(best.winner.has_value() == !expected.empty());
  RC_ASSERT(best.runner_up.has_value() == (expected.size() > 1));
  if (best.winner) RC_ASSERT(best.winner->load == expected[0]);
  if (best.runner_up) RC_ASSERT(best.runner_up->load == expected[1]);
}

/// Every question against a plain look at all ranks.
void compare(const RankIndex& index, const std::map<RankId, Naive>& ranks, std::int64_t tokens,
             std::int64_t kv_max) {
  std::vector<DecodeLoad> by_count, by_kv;
  for (const auto& [id, rank] : ranks) {
    RC_ASSERT(index.has_room(rank.slot, tokens) == has_room(rank, tokens));
    if (!has_room(rank, tokens)) continue;
    by_kv.push_back({id, rank.running, TokenCount{rank.kv}});
    if (rank.kv <= kv_max) by_count.push_back(by_kv.back());
  }
  std::sort(by_count.begin(), by_count.end(), [](const DecodeLoad& a, const DecodeLoad& b) {
    return std::tuple(a.running, a.kv, a.rank) < std::tuple(b.running, b.kv, b.rank);
  });
  std::sort(by_kv.begin(), by_kv.end(), [](const DecodeLoad& a, const DecodeLoad& b) {
    return std::tuple(a.kv, a.running, a.rank) < std::tuple(b.kv, b.running, b.rank);
  });
  expect_same(index.fewest(tokens, kv_max), by_count);
  expect_same(index.least_kv(tokens), by_kv);
  RC_ASSERT(index.count_fitting(tokens, kv_max) == static_cast<std::int64_t>(by_count.size()));
}

RC_GTEST_PROP(RankIndex, AnswersAsALookAtEveryRankWould, ()) {
  RankIndex index(kCapacity, kHeadroom);
  std::map<RankId, Naive> ranks;
  const auto steps = *rc::gen::inRange(1, 120);
  for (int step = 0; step < steps; ++step) {
    const RankId id{model::EngineId{*rc::gen::inRange(0u, 3u)}, *rc::gen::inRange(0u, 8u)};
    const auto running = *rc::gen::inRange<std::int64_t>(0, 9);  // beyond max_running too
    // Few distinct values, so that ties are common; some beyond the capacity.
    const auto kv = *rc::gen::inRange<std::int64_t>(0, 12) * 2'000;
    const auto known = ranks.find(id);
    if (known == ranks.end()) {
      ranks[id] = {running, kv, index.add(id, running, kv)};
    } else if (*rc::gen::inRange(0, 4) == 0) {
      index.remove(known->second.slot);
      ranks.erase(known);
    } else {
      known->second.running = running;
      known->second.kv = kv;
      index.update(known->second.slot, running, kv);
    }
    RC_ASSERT(index.empty() == ranks.empty());
    compare(index, ranks, *rc::gen::inRange<std::int64_t>(1, 20'000),
            *rc::gen::inRange<std::int64_t>(-5, 25'000));
  }
}

TEST(RankIndex, LoadsBeyondTheNarrowMirrorNeverFit) {
  RankIndex index({TokenCount{(1 << 30) - 1}, 4, 1000}, 128);
  index.add({}, 1, std::int64_t{1} << 40);
  EXPECT_EQ(index.count_fitting(1, INT64_MAX), 0);
  EXPECT_FALSE(index.least_kv(1).winner);
}

}  // namespace
}  // namespace trimtab::policy
