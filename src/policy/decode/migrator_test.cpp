#include "policy/decode/migrator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "base/prng.h"
#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

constexpr Nanos kStep{33'000'000};
constexpr RankId rank_id(std::uint32_t n) { return {model::EngineId{0}, n}; }

DecodeConfig moving(std::int64_t permille) {
  DecodeConfig config;
  config.policy = "waterline";
  config.moves_permille = permille;
  return config;
}

struct Group {
  explicit Group(const DecodeConfig& config, std::uint32_t ranks = 3)
      : placer(std::move(*make_decode_policy(config))) {
    for (std::uint32_t n = 0; n < ranks; ++n) placer->add_rank(rank_id(n), {TokenCount{100'000}, 32, 1000});
  }
  void put(std::uint64_t id, std::uint32_t rank, std::int64_t tokens) {
    placer->admitted(RequestId{id}, rank_id(rank), TokenCount{tokens}, Nanos{0});
  }
  std::unique_ptr<DecodePolicy> placer;
};

TEST(Migrator, IsOffUnlessAskedFor) {
  Group group(DecodeConfig{});
  for (std::uint64_t id = 1; id <= 8; ++id) group.put(id, 0, 4'000);
  EXPECT_TRUE(group.placer->migrate(Nanos{0}).empty());
}

TEST(Migrator, TakesFromTheWorstRankToTheLightest) {
  Group group(moving(1'000));
  for (std::uint64_t id = 1; id <= 6; ++id) group.put(id, 0, 4'000);
  for (std::uint64_t id = 7; id <= 10; ++id) group.put(id, 1, 4'000);
  for (std::uint64_t id = 11; id <= 12; ++id) group.put(id, 2, 4'000);
  const auto moves = group.placer->migrate(Nanos{0});
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].id, RequestId{1});  // equal requests: the lowest id
  EXPECT_EQ(moves[0].from, rank_id(0));
  EXPECT_EQ(moves[0].to, rank_id(2));
  EXPECT_EQ(moves[0].from_load, (DecodeLoad{rank_id(0), 6, TokenCount{24'000}}));
  EXPECT_LT(moves[0].potential_after, moves[0].potential_before);
  EXPECT_NE(describe(moves[0]).find("request 1 (4000 KV tokens) moves from group 0 rank 0 (6 running"),
            std::string::npos);
  EXPECT_TRUE(group.placer->moved(RequestId{1}, rank_id(2), Nanos{0}));
  EXPECT_EQ(*group.placer->ledger().where(RequestId{1}), rank_id(2));
  EXPECT_FALSE(group.placer->moved(RequestId{99}, rank_id(2), Nanos{0}));
}

TEST(Migrator, LeavesAnEvenGroupAlone) {
  Group group(moving(1'000));
  for (std::uint64_t id = 1; id <= 12; ++id) group.put(id, static_cast<std::uint32_t>(id % 3), 4'000);
  EXPECT_TRUE(group.placer->migrate(Nanos{0}).empty());
}

TEST(Migrator, SwapsALongOneForAShortOneWhenCountsAreEven) {
  Group group(moving(1'000), 2);
  for (std::uint64_t id = 1; id <= 4; ++id) group.put(id, 0, 9'000);
  for (std::uint64_t id = 5; id <= 8; ++id) group.put(id, 1, 5'000);
  const auto moves = group.placer->migrate(Nanos{0});
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_TRUE(moves[0].swaps_with_next);
  EXPECT_FALSE(moves[1].swaps_with_next);
  EXPECT_EQ(moves[0].from, moves[1].to);
  EXPECT_EQ(moves[0].to, moves[1].from);
  EXPECT_EQ(moves[0].tokens, TokenCount{9'000});
  EXPECT_EQ(moves[1].tokens, TokenCount{5'000});
}

TEST(Migrator, WaitsForItsIntervalAndItsTokens) {
  DecodeConfig config = moving(1'000);
  config.move_tokens_per_s = 3'000;
  Group group(config);
  for (std::uint64_t id = 1; id <= 6; ++id) group.put(id, 0, 4'000);
  group.put(7, 0, 2'500);
  group.put(8, 0, 2'500);
  const auto first = group.placer->migrate(Nanos{0});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].tokens, TokenCount{2'500});  // a longer one would be better but too much
  ASSERT_TRUE(group.placer->moved(first[0].id, first[0].to, Nanos{0}));
  EXPECT_TRUE(group.placer->migrate(Nanos{100'000'000}).empty());  // interval
  EXPECT_TRUE(group.placer->migrate(Nanos{300'000'000}).empty());  // 500 + 900 tokens are not 2,500
  EXPECT_EQ(group.placer->migrate(Nanos{1'000'000'000}).size(), 1u);
}

/// A group under random load that carries out every move it is offered.
RC_GTEST_PROP(Migrator, KeepsToItsBudgetAndLetsNobodyMoveTwice, (std::uint64_t seed)) {
  base::Prng prng(seed);
  DecodeConfig config = moving(static_cast<std::int64_t>(100 + prng.below(1'500)));
  Group group(config, 5);
  std::map<RequestId, Nanos> moved_at;
  std::vector<RequestId> running;
  std::int64_t placed = 0, moved = 0;
  Nanos last_plan{-1'000'000'000};
  for (std::int64_t step = 0; step < 300; ++step) {
    const Nanos now = Nanos{step * kStep.value};
    while (running.size() < 40) {
      const RequestId id{static_cast<std::uint64_t>(++placed)};
      const auto rank = static_cast<std::uint32_t>(prng.below(5) * prng.below(5) / 4);  // uneven on purpose
      const auto tokens = static_cast<std::int64_t>(100 + prng.below(prng.below(6) == 0 ? 9'000 : 1'500));
      if (!group.placer->ledger().has_room(rank_id(rank), TokenCount{tokens})) break;
      group.placer->admitted(id, rank_id(rank), TokenCount{tokens}, now);
      running.push_back(id);
    }
    const auto moves = group.placer->migrate(now);
    RC_ASSERT(moves.size() <= 2u);
    if (!moves.empty()) {
      RC_ASSERT(now - last_plan >= config.move_interval);
      last_plan = now;
    }
    for (const DecodeMove& move : moves) {
      RC_ASSERT(group.placer->ledger().where(move.id) == move.from);
      RC_ASSERT(move.from != move.to);
      RC_ASSERT(!moved_at.contains(move.id) || now - moved_at[move.id] >= config.move_rest);
      RC_ASSERT(move.potential_before - move.potential_after > move.cost);
      moved_at[move.id] = now;
      RC_ASSERT(group.placer->moved(move.id, move.to, now));
      ++moved;
    }
    RC_ASSERT(moved * 1000 <= placed * config.moves_permille);
    for (std::size_t i = 0; i < running.size();) {
      group.placer->grew(running[i], 1, now);
      if (prng.below(12) != 0) {
        ++i;
        continue;
      }
      RC_ASSERT(group.placer->ended(running[i], now));
      running[i] = running.back();
      running.pop_back();
    }
  }
  RC_ASSERT(moved > 0);
}

TEST(LedgerMove, KeepsAgeAndAccountsAndLateReportsOfTheOldRankDoNotBringItBack) {
  Group group(moving(1'000));
  DecodePolicy& placer = *group.placer;
  group.put(1, 0, 4'000);
  placer.grew(RequestId{1}, 10, Nanos{10});
  ASSERT_TRUE(placer.moved(RequestId{1}, rank_id(1), Nanos{20}));
  EXPECT_EQ(placer.ledger().load(rank_id(0)), (DecodeLoad{rank_id(0), 0, TokenCount{0}}));
  EXPECT_EQ(placer.ledger().load(rank_id(1)), (DecodeLoad{rank_id(1), 1, TokenCount{4'010}}));
  EXPECT_EQ(placer.ledger().find(RequestId{1})->age_tokens(), 10);
  EXPECT_TRUE(placer.ledger().find(RequestId{1})->running);
  for (const bool listed : {false, true}) {
    DecodeReport late;
    late.rank = rank_id(0);
    late.running = 1;
    late.kv = TokenCount{4'010};
    late.listed = listed;
    late.requests = {{RequestId{1}, TokenCount{4'010}}};
    late.as_of = Nanos{15};
    placer.report(late);
    EXPECT_EQ(placer.ledger().load(rank_id(0)).running, 0) << listed;
    EXPECT_EQ(placer.ledger().load(rank_id(0)).kv.value, 0) << listed;
  }
  EXPECT_TRUE(placer.ended(RequestId{1}, Nanos{30}));
  EXPECT_EQ(placer.ledger().totals().kv, 0);
}

TEST(LedgerSpeed, ASlowedRankTakesLess) {
  Group group(DecodeConfig{}, 2);
  group.placer->set_speed(rank_id(0), 250);
  EXPECT_EQ(group.placer->ledger().totals().speed_permille, 1'250);
  std::int64_t on_slow = 0;
  for (std::uint64_t id = 1; id <= 20; ++id) {
    const auto decision =
        group.placer->decide({RequestId{id}, TokenCount{1'000}, TokenCount{0}, Nanos{0}}, Nanos{0});
    group.placer->reserve(RequestId{id}, *decision.rank, TokenCount{1'000}, Nanos{0});
    on_slow += *decision.rank == rank_id(0) ? 1 : 0;
  }
  EXPECT_EQ(on_slow, 4);
}

}  // namespace
}  // namespace trimtab::policy
