#include "cluster/membership.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

namespace trimtab::cluster {
namespace {

using model::Role;

model::ClusterConfig small() {
  model::ClusterConfig config;
  config.decode.groups = 1;
  config.decode.ranks = 2;
  config.vision.machines = 1;
  config.vision.encoders = 2;
  return config;
}
Place decode(std::uint32_t rank) { return {Role::kDecode, EngineId{0}, rank}; }
Place encoder(std::uint32_t rank) { return {Role::kVision, EngineId{0}, rank}; }

TEST(Membership, AGroupServesOnceAllItsRanksAreThere) {
  Membership members(small());
  EXPECT_FALSE(members.join(decode(0), 10));
  EXPECT_FALSE(members.serving(Role::kDecode, EngineId{0}));
  EXPECT_TRUE(members.join(decode(1), 20));
  EXPECT_TRUE(members.open(decode(0)));
  EXPECT_EQ(members.blocks_total(decode(1)), 20);
}

TEST(Membership, ALostRankTakesItsGroupOutUntilEveryRankHasRejoined) {
  Membership members(small());
  members.join(decode(0), 10);
  members.join(decode(1), 10);
  EXPECT_TRUE(members.lose(decode(1)));
  EXPECT_FALSE(members.heard(decode(0)));  // it is connected, but what it says belongs to a dead formation
  EXPECT_FALSE(members.join(decode(1), 10));
  EXPECT_FALSE(members.serving(Role::kDecode, EngineId{0})) << "rank 0 is of the old formation";
  EXPECT_TRUE(members.join(decode(0), 10));
  EXPECT_TRUE(members.serving(Role::kDecode, EngineId{0}));
}

TEST(Membership, ALateLossOfAnOldRankDoesNotBreakTheNewFormation) {
  Membership members(small());
  members.join(decode(0), 10);
  members.join(decode(1), 10);
  members.lose(decode(0));
  members.join(decode(0), 10);               // the new rank 0 is here before ...
  EXPECT_FALSE(members.lose(decode(1)));     // ... the old rank 1 is reported gone
  EXPECT_TRUE(members.join(decode(1), 10));  // so the group is whole
}

TEST(Membership, EncodersStandAlone) {
  Membership members(small());
  EXPECT_TRUE(members.join(encoder(0), 0));
  members.join(encoder(1), 0);
  EXPECT_TRUE(members.lose(encoder(0)));
  EXPECT_TRUE(members.open(encoder(1)));
  EXPECT_FALSE(members.open(encoder(0)));
  EXPECT_TRUE(members.serving(Role::kVision, EngineId{0}));
}

TEST(Membership, DrainingKeepsServiceButTakesNoWork) {
  Membership members(small());
  members.join(decode(0), 10);
  members.join(decode(1), 10);
  members.drain(Role::kDecode, EngineId{0}, true);
  EXPECT_TRUE(members.serving(Role::kDecode, EngineId{0}));
  EXPECT_TRUE(members.heard(decode(0)));
  EXPECT_FALSE(members.open(decode(0)));
  members.drain(Role::kDecode, EngineId{0}, false);
  EXPECT_TRUE(members.open(decode(0)));
}

TEST(Membership, UnknownPlacesAreNeitherHeardNorOpen) {
  Membership members(small());
  const Place stranger{Role::kDecode, EngineId{7}, 0};
  EXPECT_FALSE(members.known(stranger));
  EXPECT_FALSE(members.heard(stranger));
  EXPECT_FALSE(members.lose(stranger));
  EXPECT_FALSE(members.open({Role::kDecode, EngineId{0}, 9}));
}

// Whatever the order of joins and losses, the group serves exactly when every rank's newest incarnation is
// there and none of them was in a formation that broke after it joined.
RC_GTEST_PROP(Membership, ServesExactlyWhenOneUnbrokenFormationIsWhole, ()) {
  auto config = small();
  config.decode.ranks = 3;
  Membership members(config);
  std::set<std::uint32_t> joined;
  const auto moves = *rc::gen::container<std::vector<std::pair<bool, std::uint32_t>>>(
      rc::gen::pair(rc::gen::arbitrary<bool>(), rc::gen::inRange(0U, 3U)));
  for (const auto& [is_join, rank] : moves) {
    if (is_join) {
      members.join(decode(rank), 1);
      joined.insert(rank);
    } else {
      const bool relied = joined.contains(rank);
      members.lose(decode(rank));
      if (relied) joined.clear();
    }
    RC_ASSERT(members.serving(Role::kDecode, EngineId{0}) == (joined.size() == 3));
    for (std::uint32_t r = 0; r < 3; ++r) RC_ASSERT(members.heard(decode(r)) == joined.contains(r));
  }
}

}  // namespace
}  // namespace trimtab::cluster
