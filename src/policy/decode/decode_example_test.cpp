// The worked example, the tables of the facts page, and the situations a decode fleet meets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "base/prng.h"
#include "policy/decode/attention_wait.h"
#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

std::unique_ptr<DecodePolicy> make(DecodeConfig config) {
  auto made = make_decode_policy(config);
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

std::unique_ptr<DecodePolicy> make(std::string_view name, std::uint32_t ranks, DecodeCapacity capacity) {
  DecodeConfig config;
  config.policy = name;
  auto placer = make(config);
  for (std::uint32_t n = 0; n < ranks; ++n) placer->add_rank({model::EngineId{n / 8}, n % 8}, capacity);
  return placer;
}

DecodeDecision place(DecodePolicy& placer, std::uint64_t id, std::int64_t tokens, Nanos now = {}) {
  const DecodeDecision decision = placer.decide({RequestId{id}, TokenCount{tokens}, TokenCount{0}, now}, now);
  if (decision.rank) placer.admitted(RequestId{id}, *decision.rank, TokenCount{tokens}, now);
  return decision;
}

std::vector<DecodeLoad> loads(const DecodePolicy& placer) {
  std::vector<DecodeLoad> all;
  for (const RankId rank : placer.ledger().open_ranks()) all.push_back(placer.ledger().load(rank));
  return all;
}

constexpr DecodeCapacity kLarge{TokenCount{8'000'000}, 128, 1000};

/// A rank carries `count` requests of `tokens` each.
void fill(DecodePolicy& placer, RankId rank, std::int64_t count, std::int64_t tokens, std::uint64_t& next) {
  for (std::int64_t i = 0; i < count; ++i)
    placer.admitted(RequestId{next++}, rank, TokenCount{tokens}, Nanos{0});
}

TEST(DecodeExample, A100KRequestGoesToTheRankWithTheSmallestKvTotal) {
  for (const std::string_view name : {"waterline", "dualpath"}) {
    auto placer = make(name, 8, kLarge);
    std::uint64_t next = 1;
    // About 320K of KV everywhere; rank 5 has the least KV but runs the most requests.
    for (std::uint32_t n = 0; n < 8; ++n)
      if (n != 5) fill(*placer, {model::EngineId{0}, n}, 40, 8'000 + 10 * n, next);
    fill(*placer, {model::EngineId{0}, 5}, 62, 5'000, next);
    const DecodeDecision decision = place(*placer, next, 100'000);
    EXPECT_EQ(*decision.rank, (RankId{model::EngineId{0}, 5})) << name << ": " << describe(decision);
    EXPECT_EQ(decision.reason.rule, DecodeRule::kLeastKv);
    EXPECT_EQ(decision.reason.winner->running, 62);
    EXPECT_EQ(decision.reason.winner->kv, TokenCount{310'000});
    EXPECT_EQ(decision.reason.runner_up->rank, (RankId{model::EngineId{0}, 0}));
  }
}

TEST(DecodeExample, AShortRequestGoesToLowConcurrencyThoughItsKvIsLarge) {
  auto placer = make("waterline", 8, kLarge);
  std::uint64_t next = 1;
  for (std::uint32_t n = 0; n < 8; ++n)
    if (n != 3) fill(*placer, {model::EngineId{0}, n}, 60, 5'000, next);
  fill(*placer, {model::EngineId{0}, 3}, 10, 30'500, next);  // few long ones: more KV than anyone
  const DecodeDecision decision = place(*placer, next, 1'000);
  EXPECT_EQ(*decision.rank, (RankId{model::EngineId{0}, 3})) << describe(decision);
  EXPECT_EQ(decision.reason.rule, DecodeRule::kFewestBelowLine);
  EXPECT_EQ(decision.reason.fitting, 8);
}

// System facts, section 16, row 4.
TEST(DecodeExample, ARankPiledWithLongRequestsIsLeftAloneByLaterLongOnes) {
  auto placer = make("waterline", 8, kLarge);
  std::uint64_t next = 1;
  const RankId piled{model::EngineId{0}, 2};
  for (std::uint32_t n = 0; n < 8; ++n) fill(*placer, {model::EngineId{0}, n}, 20, 10'000, next);
  fill(*placer, piled, 8, 100'000, next);
  std::set<RankId> chosen;
  for (int i = 0; i < 49; ++i) {
    const DecodeDecision decision = place(*placer, next++, 100'000);
    EXPECT_NE(*decision.rank, piled) << describe(decision);
    chosen.insert(*decision.rank);
  }
  EXPECT_EQ(chosen.size(), 7u);  // and the others share them evenly
  for (const DecodeLoad& load : loads(*placer)) {
    EXPECT_EQ(load.running, load.rank == piled ? 28 : 27);
  }
}

std::vector<std::int64_t> chapter_contexts() {
  std::ifstream file("tests/data/dp_attention_contexts.txt");
  std::vector<std::int64_t> contexts;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    for (std::int64_t tokens = 0; words >> tokens;) contexts.push_back(tokens);
  }
  return contexts;
}

// System facts, section 7.
TEST(DecodeExample, BothRowsOfTheDpAttentionTable) {
  const std::vector<std::int64_t> contexts = chapter_contexts();
  ASSERT_EQ(contexts.size(), 2'048u);
  const auto row = [&](std::string_view name) {
    auto placer = make(name, 32, kLarge);
    std::uint64_t id = 1;
    for (const std::int64_t tokens : contexts) EXPECT_TRUE(place(*placer, id++, tokens).rank);
    const AttentionWait wait = attention_wait({}, loads(*placer));
    return std::tuple(std::lround(wait.slowest_s * 1e6), std::lround(wait.mean_s * 1e6),
                      std::lround(wait.idle_s() * 1e6));
  };
  EXPECT_EQ(row("round_robin"), std::tuple(243, 165, 78));
  EXPECT_EQ(row("total_tokens"), std::tuple(183, 165, 18));  // at most 128 running: kLarge's cap
  // Ours waits no longer than the one-dimensional rule and keeps the counts even as well.
  EXPECT_LE(std::get<0>(row("waterline")), 183);
}

// By name, not over the registry: spreading is what these promise. What every policy owes is in
// decode_property_test.cpp.
TEST(DecodeRamp, FromEmptyRequestsSpreadAndNothingPilesUp) {
  for (const std::string_view name :
       {"waterline", "dualpath", "round_robin", "total_requests", "total_tokens"}) {
    auto placer = make(name, 144, {TokenCount{2'000'000}, 64, 1000});
    base::Prng prng(7);
    std::uint64_t id = 1;
    std::int64_t longest = 0;
    std::set<RankId> first;
    for (int i = 0; i < 144 * 32; ++i) {
      const auto drawn = static_cast<std::int64_t>(std::exp(std::log(3'000.0) + prng.normal()));
      const std::int64_t tokens = std::clamp<std::int64_t>(drawn, 1, 128'000);
      longest = std::max(longest, tokens);
      const DecodeDecision decision = place(*placer, id++, tokens);
      ASSERT_TRUE(decision.rank);
      if (i < 144) first.insert(*decision.rank);
    }
    // The first 144 take 144 ranks. (DualPath evens out the groups' tokens first, so some ranks get a
    // second.)
    EXPECT_GE(first.size(), name == "dualpath" ? 115u : 144u) << name;
    std::int64_t running_max = 0, kv_max = 0, kv_sum = 0;
    for (const DecodeLoad& load : loads(*placer)) {
      running_max = std::max(running_max, load.running);
      kv_max = std::max(kv_max, load.kv.value);
      kv_sum += load.kv.value;
    }
    if (name != "waterline" && name != "dualpath") continue;
    EXPECT_LE(running_max, 42) << name;
    EXPECT_LE(kv_max, kv_sum / 144 + longest) << name << ": nothing beyond what one request explains";
  }
}

TEST(DecodeMixedSpeeds, ARankOfHalfTheSpeedGetsHalfTheWork) {
  auto placer = make("waterline", 0, kLarge);
  for (std::uint32_t n = 0; n < 8; ++n)
    placer->add_rank({model::EngineId{0}, n}, {TokenCount{8'000'000}, 128, n < 4 ? 1000 : 500});
  for (std::uint64_t id = 1; id <= 240; ++id)
    place(*placer, id, 1'000 + static_cast<std::int64_t>(id % 7) * 300);
  for (const DecodeLoad& load : loads(*placer))
    EXPECT_NEAR(static_cast<double>(load.running), load.rank.rank < 4 ? 40 : 20, 1) << load.rank.rank;
}

}  // namespace
}  // namespace trimtab::policy
