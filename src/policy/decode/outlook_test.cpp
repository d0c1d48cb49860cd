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

/// The best two by definition: exact fractions of the speed, then the id.
std::vector<Rank> sorted(std::vector<Rank> ranks, std::int64_t tokens, bool by_kv) {
  const auto before = [&](const Rank& a, const Rank& b) {
    const auto running = [](const Rank& r) { return r.running / 256 + 4'096; };  // 1/4,096 are told apart
    const auto kv = [&](const Rank& r) { return r.kv + tokens; };
    const std::int64_t first_a = by_kv ? kv(a) : running(a), first_b = by_kv ? kv(b) : running(b);
    const std::int64_t second_a = by_kv ? running(a) : kv(a), second_b = by_kv ? running(b) : kv(b);
    if (first_a * b.speed != first_b * a.speed) return first_a * b.speed < first_b * a.speed;
    if (second_a * b.speed != second_b * a.speed) return second_a * b.speed < second_b * a.speed;
    return a.id < b.id;
  };
  std::sort(ranks.begin(), ranks.end(), before);
  return ranks;
}

RC_GTEST_PROP(OutlookScan, ChoosesAsDefined, (bool mixed, bool leases)) {
  Outlook outlook(4);
  std::vector<Rank> ranks;
  for (std::uint32_t slot = 0; slot < 41; ++slot) {
    Rank rank;
    rank.id = {model::EngineId{slot % 3}, (slot * 5) % 41};  // joins out of order
    rank.count = *rc::gen::inRange(0, 4);
    rank.running = rank.count * SurvivalTable::kOne - *rc::gen::inRange(0, 3) * (rank.count > 0 ? 1'000 : 0);
    rank.kv = *rc::gen::inRange<std::int64_t>(0, 6) * 500;
    rank.room = *rc::gen::inRange<std::int64_t>(-1, 4) * 700;
    rank.speed = mixed && slot % 2 == 1 ? 700 : 1000;
    outlook.set(rank.id, {{1, 1}, 5, 1, 1, 900});  // replaced by the next line
    outlook.set(rank.id, {{rank.running, rank.kv}, rank.room, rank.count, rank.kv + 1, rank.speed});
    if (*rc::gen::inRange(0, 5) == 0) {
      outlook.remove(rank.id);
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
    const std::vector<Rank> expected = sorted(allowed, tokens, by_kv);
    RC_ASSERT(best.fitting == static_cast<std::int64_t>(allowed.size()));
    RC_ASSERT(best.winner.has_value() == !allowed.empty());
    RC_ASSERT(best.runner_up.has_value() == (allowed.size() > 1));
    if (best.winner) RC_ASSERT(best.winner->rank == expected[0].id);
    if (best.winner) RC_ASSERT(best.winner->kv == expected[0].kv + 1);
    if (best.winner) RC_ASSERT(best.winner->running == expected[0].count);
    if (best.winner) RC_ASSERT(best.running_permille == expected[0].running / 256 * 1000 / 4'096);
    if (best.runner_up) RC_ASSERT(best.runner_up->rank == expected[1].id);
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
  EXPECT_NEAR(static_cast<double>(young.kv), 5'001, 60);
  EXPECT_LT(old.kv, young.kv);
  // Load of unknown age: the mean hazard, one end in a hundred tokens.
  const Expected foreign = outlook.of_foreign(10, 1'000);
  EXPECT_NEAR(static_cast<double>(foreign.running) / SurvivalTable::kOne, 9.9, 0.02);
}

}  // namespace
}  // namespace trimtab::policy
