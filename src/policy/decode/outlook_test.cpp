#include "policy/decode/outlook.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>

namespace trimtab::policy {
namespace {

struct Rank {
  model::RankId id;
  std::int64_t running = 0, kv = 0, room = -1, count = 0, speed = 1000;
};

/// The best two by definition: exact fractions, then the id.
std::vector<Rank> sorted(std::vector<Rank> ranks, std::int64_t tokens, bool by_kv) {
  const bool uniform = std::all_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.speed == 1000; });
  const auto key = [&](const Rank& rank) {
    const std::int64_t running =
        uniform ? rank.running : (rank.running + SurvivalTable::kOne) * 1000 / rank.speed;
    const std::int64_t kv = uniform ? rank.kv : (rank.kv + tokens) * 1000 / rank.speed;
    return by_kv ? std::tuple(kv, running, rank.id) : std::tuple(running, kv, rank.id);
  };
  std::sort(ranks.begin(), ranks.end(), [&](const Rank& a, const Rank& b) { return key(a) < key(b); });
  return ranks;
}

RC_GTEST_PROP(OutlookScan, ChoosesAsDefined, (bool mixed, bool leases)) {
  Outlook outlook(4);
  std::vector<Rank> ranks;
  for (std::uint32_t slot = 0; slot < 9; ++slot) {
    Rank rank;
    rank.id = {model::EngineId{(9 - slot) / 3}, (slot * 5) % 9};  // ids in another order than slots
    rank.count = *rc::gen::inRange(0, 4);
    rank.running = rank.count * SurvivalTable::kOne - *rc::gen::inRange(0, 3) * (rank.count > 0 ? 1'000 : 0);
    rank.kv = *rc::gen::inRange<std::int64_t>(0, 6) * 500;
    rank.room = *rc::gen::inRange<std::int64_t>(-1, 4) * 700;
    rank.speed = mixed && slot % 2 == 1 ? 700 : 1000;
    outlook.set(slot, rank.id, {1, 1}, 5, 1, 1000);  // replaced by the next line
    outlook.set(slot, rank.id, {rank.running, rank.kv}, rank.room, rank.count, rank.speed);
    if (*rc::gen::inRange(0, 5) == 0) {
      outlook.remove(slot);
      continue;
    }
    ranks.push_back(rank);
  }
  std::int64_t kv = 0;
  for (const Rank& rank : ranks) kv += rank.kv;
  RC_ASSERT(outlook.total_kv() == kv);
  std::vector<Rank> by_id = ranks;
  std::sort(by_id.begin(), by_id.end(), [](const Rank& a, const Rank& b) { return a.id < b.id; });
  if (leases) outlook.lease(3, 1);
  const auto is_leased = [&](const Rank& rank) {
    const auto at = std::find_if(by_id.begin(), by_id.end(), [&](const Rank& r) { return r.id == rank.id; });
    return (at - by_id.begin()) % 3 == 1;
  };
  const bool uniform = std::all_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.speed == 1000; });
  const auto tokens = *rc::gen::inRange<std::int64_t>(1, 2'500);
  const auto line = *rc::gen::inRange<std::int64_t>(0, 5'000);
  const Outlook::Ceiling ceiling{line, *rc::gen::inRange<std::int64_t>(0, 4'000), *rc::gen::inRange(1, 3)};
  const auto check = [&](const Outlook::Best& best, bool by_kv, auto&& fits) {
    std::vector<Rank> allowed;
    for (const Rank& rank : ranks)
      if (rank.room >= tokens && fits(rank)) allowed.push_back(rank);
    std::vector<Rank> mine;
    for (const Rank& rank : allowed)
      if (leases && is_leased(rank)) mine.push_back(rank);
    if (!mine.empty()) allowed = mine;  // others only when no leased rank will do
    // Keys are compared as a fleet of one speed or of several, as the whole is.
    std::vector<Rank> expected = allowed;
    if (!uniform && !expected.empty())
      expected.push_back({{model::EngineId{99}, 0}, INT32_MAX, INT32_MAX, 0, 0, 999});
    expected = sorted(expected, tokens, by_kv);
    RC_ASSERT(best.fitting == static_cast<std::int64_t>(allowed.size()));
    RC_ASSERT(best.winner.has_value() == !allowed.empty());
    RC_ASSERT(best.runner_up.has_value() == (allowed.size() > 1));
    if (best.winner) RC_ASSERT(*best.winner == expected[0].id);
    if (best.winner) RC_ASSERT(best.running == expected[0].running);
    if (best.runner_up) RC_ASSERT(*best.runner_up == expected[1].id);
  };
  const auto under = [&](const Rank& rank) { return (rank.kv + tokens) * 1000 <= line * rank.speed; };
  const auto below = [&](const Rank& rank) {
    const std::int64_t step = ceiling.graph_step;
    const std::int64_t even = (ceiling.running_permille * rank.speed + 999'999) / 1'000'000;
    return under(rank) && rank.count + 1 <= (even + step - 1) / step * step;
  };
  check(outlook.fewest(tokens, line), false, under);
  check(outlook.least_kv(tokens), true, [](const Rank&) { return true; });
  check(outlook.fewest_below(tokens, ceiling), false, below);
  bool fits_somewhere = false;
  for (const Rank& rank : ranks) fits_somewhere = fits_somewhere || (rank.room >= tokens && below(rank));
  RC_ASSERT(outlook.fits_below(tokens, ceiling) == fits_somewhere);
}

TEST(OutlookExpect, ARequestCountsAsOftenAsItSurvives) {
  Outlook outlook(4);
  // All of 1,024 lives end at once after 100 tokens.
  for (int i = 0; i < 1'024; ++i) {
    for (std::int64_t age = 0; age < 100; ++age) outlook.survival().streamed(age, 1);
    outlook.survival().ended(99);
  }
  const Expected young = outlook.of(10, 5'000), old = outlook.of(99, 5'000);
  EXPECT_GT(young.running, SurvivalTable::kOne * 98 / 100);
  EXPECT_LT(old.running, SurvivalTable::kOne * 9 / 10);
  EXPECT_NEAR(static_cast<double>(young.kv), 5'004, 60);
  EXPECT_LT(old.kv, young.kv);
  // Load of unknown age: the mean hazard, one end in a hundred tokens.
  const Expected foreign = outlook.of_foreign(10, 1'000);
  EXPECT_NEAR(static_cast<double>(foreign.running) / SurvivalTable::kOne, 9.6, 0.05);
}

}  // namespace
}  // namespace trimtab::policy
