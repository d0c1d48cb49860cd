// Memory: reservations, headroom, holding and preemption; and what a wrong configuration is told.
#include <gmock/gmock.h>

#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

constexpr RankId kRank{model::EngineId{0}, 0};

std::unique_ptr<DecodePolicy> make(DecodeConfig config, std::uint32_t ranks, DecodeCapacity capacity) {
  auto made = make_decode_policy(config);
  EXPECT_TRUE(made) << made.error().message;
  for (std::uint32_t n = 0; n < ranks; ++n) (*made)->add_rank({model::EngineId{0}, n}, capacity);
  return std::move(*made);
}

DecodeRequest request(std::uint64_t id, std::int64_t tokens, Nanos since = {}) {
  return {RequestId{id}, TokenCount{tokens}, TokenCount{0}, since};
}

TEST(DecodeMemory, AReservationTakesTheLastRoomAndGivesItBack) {
  auto placer = make({}, 1, {TokenCount{4'096}, 8, 1000});
  ASSERT_EQ(placer->decide(request(1, 3'000), Nanos{0}).rank, kRank);
  placer->reserve(RequestId{1}, kRank, TokenCount{3'000}, Nanos{0});
  // 3,000 + 900 + 2 * 128 > 4,096: nothing half transferred may be promised the same blocks.
  const DecodeDecision second = placer->decide(request(2, 900), Nanos{1});
  EXPECT_FALSE(second.rank);
  EXPECT_TRUE(second.hold);
  EXPECT_EQ(second.reason.rule, DecodeRule::kHeldNoRoom);
  EXPECT_EQ(placer->decide(request(3, 840), Nanos{1}).rank, kRank);
  placer->ended(RequestId{1}, Nanos{2});  // the hand-over failed
  EXPECT_EQ(placer->decide(request(2, 900), Nanos{3}).rank, kRank);
}

TEST(DecodeMemory, WhatNoRankCanEverHoldIsRefusedNotHeld) {
  auto placer = make({}, 2, {TokenCount{4'096}, 8, 1000});
  const DecodeDecision decision = placer->decide(request(1, 3'969), Nanos{0});
  EXPECT_FALSE(decision.rank);
  EXPECT_FALSE(decision.hold);
  EXPECT_EQ(describe(decision), "refused: longer than any decode rank could hold");
  EXPECT_TRUE(placer->decide(request(2, 3'968), Nanos{0}).rank);
}

TEST(DecodeMemory, WithoutRanksTheAnswerSaysSo) {
  auto placer = make({}, 0, {});
  EXPECT_EQ(placer->decide(request(1, 10), Nanos{0}).reason.rule, DecodeRule::kNoRanks);
}

class Preemption : public ::testing::Test {
 protected:
  std::unique_ptr<DecodePolicy> placer(const std::vector<std::int64_t>& lengths, VictimRule rule) {
    DecodeConfig config;
    config.victim = rule;
    auto made = make(config, 1, {TokenCount{128 * 80}, 16, 1000});
    std::uint64_t id = 1;
    for (const std::int64_t tokens : lengths) {
      made->admitted(RequestId{id}, kRank, TokenCount{tokens}, Nanos{static_cast<std::int64_t>(id)});
      ++id;
    }
    return made;
  }
};

TEST_F(Preemption, TheSmallestThatFreesEnoughYieldsAndTheOldestStays) {
  // 4 requests, 80 blocks in use of 80: three remain and want 128 tokens each.
  auto full = placer({256, 3'840, 384, 5'760}, VictimRule::kBestFit);
  ASSERT_EQ(full->ledger().free_blocks(kRank), 0);
  const auto victim = full->choose_victim(kRank);
  ASSERT_TRUE(victim);
  EXPECT_EQ(victim->wanted, TokenCount{384});
  EXPECT_EQ(victim->id, RequestId{3});  // exactly 384; request 1 is the oldest
  EXPECT_EQ(victim->others, 2);
}

TEST_F(Preemption, WhenNoneFreesEnoughTheLargestYields) {
  auto full = placer({9'472, 128, 256, 200}, VictimRule::kBestFit);
  ASSERT_EQ(full->ledger().free_blocks(kRank), 1);
  for (std::uint64_t id = 2; id <= 4; ++id) full->grew(RequestId{id}, 1, Nanos{9});
  // 129, 257 and 201 tokens; wanted 3 * 128 less what is free (over-committed by a block now).
  ASSERT_LT(full->ledger().free_blocks(kRank), 0);
  EXPECT_EQ(full->choose_victim(kRank)->id, RequestId{3});
}

TEST_F(Preemption, WhoYieldedBeforeIsSpared) {
  auto full = placer({256, 3'840}, VictimRule::kBestFit);
  full->reserve(RequestId{8}, kRank, TokenCount{1'024}, Nanos{8}, 1);
  full->admitted(RequestId{8}, kRank, TokenCount{1'024}, Nanos{8});
  full->reserve(RequestId{9}, kRank, TokenCount{5'120}, Nanos{9});
  full->admitted(RequestId{9}, kRank, TokenCount{5'120}, Nanos{9});
  EXPECT_EQ(full->choose_victim(kRank)->id, RequestId{2});
}

TEST_F(Preemption, LongestOutputIsDeepInfersRule) {
  auto full = placer({256, 3'840, 1'024, 4'000}, VictimRule::kLongestOutput);
  full->grew(RequestId{1}, 90, Nanos{9});
  full->grew(RequestId{4}, 50, Nanos{9});
  full->grew(RequestId{3}, 20, Nanos{9});
  EXPECT_EQ(full->choose_victim(kRank)->id, RequestId{4});  // request 1 is the oldest
  EXPECT_EQ(full->choose_victim(kRank)->generated, TokenCount{50});
}

TEST_F(Preemption, NobodyYieldsToNobody) {
  EXPECT_FALSE(placer({}, VictimRule::kBestFit)->choose_victim(kRank));
  EXPECT_FALSE(placer({9'000}, VictimRule::kBestFit)->choose_victim(kRank));
  auto reserved = placer({9'000}, VictimRule::kBestFit);
  reserved->reserve(RequestId{2}, kRank, TokenCount{500}, Nanos{2});
  EXPECT_FALSE(reserved->choose_victim(kRank)) << "a reservation has nothing to give back to the rank's step";
}

TEST(DecodeCeiling, HoldsRatherThanLiftsARankAboveItButNotForEver) {
  DecodeConfig config;
  config.policy = "waterline";
  config.ceiling_permille = 1'030;
  config.hold_max = Nanos{1'000};
  auto placer = make(config, 2, {TokenCount{1'000'000}, 4, 1000});
  // A full rank of mean requests would hold 4 x 1,000; the ceiling is 4,120.
  std::uint64_t id = 1;
  for (std::uint32_t n = 0; n < 2; ++n)
    for (int i = 0; i < 3; ++i)
      placer->admitted(RequestId{id++}, {model::EngineId{0}, n}, TokenCount{1'000}, Nanos{0});
  EXPECT_TRUE(placer->decide(request(20, 1'120, Nanos{500}), Nanos{600}).rank);
  const DecodeDecision held = placer->decide(request(21, 1'121, Nanos{500}), Nanos{600});
  EXPECT_FALSE(held.rank);
  EXPECT_TRUE(held.hold);
  EXPECT_EQ(describe(held), "held: every rank with room would rise above the ceiling 4120");
  EXPECT_TRUE(placer->decide(request(21, 1'121, Nanos{500}), Nanos{1'500}).rank) << "waited for hold_max";
  EXPECT_TRUE(placer->decide(request(22, 5'000, Nanos{500}), Nanos{600}).rank) << "above it even alone";
}

TEST(DecodeRegistry, NamesTheOffendingValueAndTheFix) {
  const auto error = [](auto&& change) {
    DecodeConfig config;
    change(config);
    const auto made = make_decode_policy(config);
    return made ? std::string("accepted") : made.error().message;
  };
  EXPECT_THAT(error([](DecodeConfig& c) { c.policy = "waterlin"; }),
              ::testing::StartsWith("there is no decode policy \"waterlin\"; did you mean \"waterline\"? "
                                    "Known: waterline, dualpath, "));
  EXPECT_EQ(error([](DecodeConfig& c) { c.headroom_tokens = 126; }),
            "headroom_tokens is 126; it must be from 127 to 16777216");
  EXPECT_EQ(error([](DecodeConfig& c) { c.slack_permille = -1; }),
            "slack_permille is -1; it must be from 0 to 1000000");
  EXPECT_EQ(error([](DecodeConfig& c) { c.relax_percent = 99; }),
            "relax_percent is 99; it must be from 100 to 10000");
  for (const std::string_view name : decode_policy_names())
    EXPECT_EQ(error([&](DecodeConfig& c) { c.policy = name; }), "accepted");
  model::DecodeConfig cluster;
  cluster.policy = "dualpath";
  cluster.headroom_tokens = 256;
  EXPECT_EQ(decode_config(cluster).policy, "dualpath");
  EXPECT_EQ(decode_config(cluster).headroom_tokens, 256);
}

}  // namespace
}  // namespace trimtab::policy
