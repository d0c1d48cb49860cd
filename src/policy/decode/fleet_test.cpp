#include "policy/decode/fleet.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace trimtab::policy {
namespace {

struct Loaded {
  DecodeLoad load;
  DecodeCapacity capacity;
};

/// a / speed < b / speed, then the second dimension, then the id; by cross products.
bool before(const Loaded& a, const Loaded& b, bool by_kv) {
  const auto first = [&](const Loaded& x) { return by_kv ? x.load.kv.value : x.load.running; };
  const auto second = [&](const Loaded& x) { return by_kv ? x.load.running : x.load.kv.value; };
  const std::int64_t sa = a.capacity.speed_permille, sb = b.capacity.speed_permille;
  if (first(a) * sb != first(b) * sa) return first(a) * sb < first(b) * sa;
  if (second(a) * sb != second(b) * sa) return second(a) * sb < second(b) * sa;
  return a.load.rank < b.load.rank;
}

RC_GTEST_PROP(Fleet, MixedKindsAreComparedPerUnitOfSpeed, ()) {
  const DecodeCapacity kinds[] = {
      {TokenCount{9'000}, 6, 1000}, {TokenCount{9'000}, 6, 500}, {TokenCount{6'000}, 3, 3'001}};
  DecodeLedger ledger(DecodeLedger::Scope::kFleet, 128, Nanos{1'000});
  std::vector<Loaded> ranks;
  std::uint64_t next = 1;
  for (std::uint32_t n = 0; n < 7; ++n) {
    Loaded rank{{RankId{model::EngineId{n / 3}, n % 3}, 0, TokenCount{0}}, kinds[*rc::gen::inRange(0, 3)]};
    ledger.add_rank(rank.load.rank, rank.capacity);
    for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
      const TokenCount tokens{*rc::gen::inRange<std::int64_t>(1, 5) * 600};
      ledger.reserve(RequestId{next++}, rank.load.rank, tokens, Nanos{0}, 0);
      rank.load.running += 1;
      rank.load.kv += tokens;
    }
    ranks.push_back(rank);
  }
  const TokenCount tokens{*rc::gen::inRange<std::int64_t>(1, 5'000)};
  const auto line = *rc::gen::inRange<std::int64_t>(0, 12'000);
  std::vector<Loaded> room, under;
  for (const Loaded& rank : ranks) {
    const std::int64_t kv = rank.load.kv.value + tokens.value;
    if (rank.load.running >= rank.capacity.max_running) continue;
    if (kv + 128 * (rank.load.running + 1) > rank.capacity.kv.value) continue;
    room.push_back(rank);
    if (kv * 1000 <= line * rank.capacity.speed_permille) under.push_back(rank);
  }
  std::sort(room.begin(), room.end(), [](const Loaded& a, const Loaded& b) { return before(a, b, true); });
  std::sort(under.begin(), under.end(), [](const Loaded& a, const Loaded& b) { return before(a, b, false); });
  const auto same = [](const RankIndex::Best& best, const std::vector<Loaded>& expected) {
    RC_ASSERT(best.winner.has_value() == !expected.empty());
    RC_ASSERT(best.runner_up.has_value() == (expected.size() > 1));
    if (best.winner) RC_ASSERT(best.winner->load == expected[0].load);
    if (best.runner_up) RC_ASSERT(best.runner_up->load == expected[1].load);
  };
  const DecodeLedger::Group& fleet = ledger.groups().front();
  same(least_kv(fleet, tokens), room);
  same(fewest_running(fleet, tokens, line), under);
  RC_ASSERT(count_fitting(fleet, tokens, line) == static_cast<std::int64_t>(under.size()));
  RC_ASSERT(count_fitting(fleet, tokens) == static_cast<std::int64_t>(room.size()));
}

}  // namespace
}  // namespace trimtab::policy
