#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "policy/placement/designs.h"
#include "policy/placement/field.h"
#include "policy/placement/rebuild.h"
#include "policy/placement/resize.h"

namespace trimtab::placement {
namespace {

StripeMap map_of(std::uint32_t nodes, const std::vector<std::uint32_t>& racks = {}) {
  auto map = make_map(nodes, racks);
  EXPECT_TRUE(map) << map.error().message;
  EXPECT_TRUE(check(*map));
  return std::move(*map);
}

std::vector<std::uint32_t> even_racks(std::uint32_t nodes, std::uint32_t racks) {
  std::vector<std::uint32_t> out(nodes);
  for (std::uint32_t n = 0; n < nodes; ++n) out[n] = n % racks;
  return out;
}

TEST(FieldTest, OfASquareIsAField) {
  const Field field(25);
  std::set<std::uint32_t> powers;
  for (std::uint32_t i = 0; i < 24; ++i) powers.insert(field.power(field.generator(), i));
  EXPECT_EQ(powers.size(), 24U);
  for (std::uint32_t a = 0; a < 25; ++a) {
    EXPECT_EQ(field.add(a, field.negative(a)), 0U);
    for (std::uint32_t b = 0; b < 25; ++b)
      EXPECT_EQ(field.multiply(a, field.add(b, 7)), field.add(field.multiply(a, b), field.multiply(a, 7)));
  }
}

/// (nodes, groups, shards of a node, groups of a pair), as the tables of designs give them.
struct Known {
  std::uint32_t nodes, groups, shards, pairs;
};

class ExactTest : public testing::TestWithParam<Known> {};

TEST_P(ExactTest, EveryPairMeetsEquallyOften) {
  const Known known = GetParam();
  const auto design = exact_design(known.nodes);
  ASSERT_TRUE(design);
  EXPECT_EQ(design->groups.size(), known.groups);
  const MapBalance even = balance({1, known.nodes, {}, design->groups, {}});
  EXPECT_TRUE(even.exact());
  EXPECT_EQ(even.shards_least, known.shards);
  EXPECT_EQ(even.pairs_least, known.pairs);
}

INSTANTIATE_TEST_SUITE_P(Designs, ExactTest,
                         testing::Values(Known{13, 13, 12, 11}, Known{16, 20, 15, 11}, Known{23, 23, 12, 6},
                                         Known{24, 46, 23, 11}, Known{25, 50, 24, 11}, Known{37, 111, 36, 11},
                                         Known{45, 45, 12, 3}, Known{49, 196, 48, 11}, Known{61, 305, 60, 11},
                                         Known{67, 201, 36, 6}, Known{73, 438, 72, 11}, Known{89, 356, 48, 6},
                                         Known{97, 776, 96, 11}, Known{109, 981, 108, 11},
                                         Known{121, 1210, 120, 11}, Known{133, 133, 12, 1},
                                         Known{157, 2041, 156, 11}, Known{169, 2366, 168, 11},
                                         Known{199, 1791, 108, 6}),
                         [](const auto& known) { return std::to_string(known.param.nodes); });

TEST(MapTest, EveryNodeHoldsTheSame) {
  for (const std::uint32_t nodes : {12U, 14U, 17U, 32U, 50U, 64U, 100U, 180U, 200U, 333U, 512U}) {
    const MapBalance even = balance(map_of(nodes));
    EXPECT_EQ(even.shards_least, even.shards_most) << nodes;
  }
}

TEST(MapTest, IsTheSameEveryTime) { EXPECT_EQ(map_of(64).groups, map_of(64).groups); }

TEST(MapTest, RefusesWhatCannotBe) {
  EXPECT_NE(make_map(11).error().message.find("11 storage nodes"), std::string::npos);
  EXPECT_NE(make_map(513).error().message.find("12 to 512"), std::string::npos);
  const std::vector<std::uint32_t> few{0, 1};
  EXPECT_FALSE(make_map(24, few));
  auto uneven = even_racks(48, 12);
  for (std::uint32_t n = 0; n < 20; ++n) uneven[n] = 0;
  const auto refused = make_map(48, uneven);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("rack 0 has"), std::string::npos);
}

TEST(RebuildTest, LevelsWhatTheSurvivorsRead) {
  for (const std::uint32_t nodes :
       {13U, 14U, 16U, 19U, 23U, 25U, 32U, 45U, 48U, 64U, 97U, 100U, 133U, 180U}) {
    const StripeMap map = map_of(nodes);
    for (const NodeId dead : {NodeId{0}, static_cast<NodeId>(nodes - 1)}) {
      const auto plan = plan_rebuild(map, std::span(&dead, 1));
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_EQ(plan->groups.size(), shards_of(map)[dead]);
      std::uint64_t reads = 0;
      for (const std::uint32_t r : plan->reads) reads += r;
      EXPECT_EQ(reads, plan->groups.size() * kDataShards);
      EXPECT_EQ(plan->reads[dead], 0U);
      const bool exact = exact_design(nodes).has_value();
      EXPECT_LE(plan->read_imbalance, exact ? 1.0 : 1.02) << nodes;
      const auto most = *std::ranges::max_element(plan->writes);
      EXPECT_EQ(most, (plan->groups.size() + nodes - 2) / (nodes - 1)) << nodes;
    }
  }
}

TEST(RebuildTest, SparesHoldNothingOfTheirGroup) {
  const StripeMap map = map_of(64, even_racks(64, 16));
  const std::vector<NodeId> dead{3, 40};
  const auto plan = plan_rebuild(map, dead);
  ASSERT_TRUE(plan) << plan.error().message;
  StripeMap after = map;
  for (const GroupRebuild& group : plan->groups)
    for (const GroupRebuild::Lost& lost : group.lost) after.groups[group.group][lost.shard] = lost.spare;
  EXPECT_TRUE(check(after));
  EXPECT_EQ(balance(after).rack_most, 1U);
  EXPECT_EQ(shards_of(after)[3] + shards_of(after)[40], 0U);
  EXPECT_LT(plan->write_imbalance, 1.05);
}

TEST(RebuildTest, SaysWhatIsLost) {
  const StripeMap map = map_of(13);
  const std::vector<NodeId> three{0, 1, 2}, beyond{13}, one{0};
  EXPECT_EQ(plan_rebuild(map, three).error().code, base::Code::kDataLoss);
  EXPECT_EQ(plan_rebuild(map, beyond).error().code, base::Code::kInvalidArgument);
  EXPECT_EQ(plan_rebuild(map_of(12), one).error().code, base::Code::kResourceExhausted);
}

TEST(RackTest, EqualAndUnequalRacksKeepTheRule) {
  for (const auto& [nodes, racks, most] :
       {std::tuple{48U, 12U, 1U}, std::tuple{60U, 20U, 1U}, std::tuple{64U, 8U, 2U}, std::tuple{50U, 16U, 1U},
        std::tuple{75U, 13U, 1U}, std::tuple{24U, 6U, 2U}, std::tuple{30U, 4U, 4U}}) {
    const MapBalance even = balance(map_of(nodes, even_racks(nodes, racks)));
    EXPECT_EQ(even.shards_least, even.shards_most) << nodes;
    EXPECT_LE(even.rack_most, most) << nodes << " in " << racks;
    EXPECT_LE(even.pairs_most, even.pairs_least * 6 / 5 + 3) << nodes << " in " << racks;
  }
}

RC_GTEST_PROP(ResizeTest, GrowingMovesOnlyWhatTheNewNodesHold, ()) {
  const auto nodes = *rc::gen::inRange<std::uint32_t>(12, 45);
  const auto more = *rc::gen::inRange<std::uint32_t>(1, 6);
  const StripeMap map = map_of(nodes);
  const auto change = expand(map, more);
  RC_ASSERT(change.has_value());
  RC_ASSERT(check(change->map).has_value());
  RC_ASSERT(change->map.version == map.version + 1);
  const auto shards = shards_of(change->map);
  const auto [least, most] = std::ranges::minmax(shards);
  const std::size_t share = map.groups.size() * kShards / (nodes + more);
  RC_ASSERT(least == share);
  RC_ASSERT(most <= (map.groups.size() * kShards - share * more + nodes - 1) / nodes);
  RC_ASSERT(change->moves.size() == share * more);
  for (const ShardMove& move : change->moves) RC_ASSERT(move.to >= nodes);
}

TEST(ResizeTest, PairsStayLevel) {
  const auto change = expand(map_of(60), 4);
  ASSERT_TRUE(change);
  const MapBalance even = balance(change->map);
  EXPECT_LE(even.pairs_most, even.pairs_least * 5 / 4);
  for (const NodeId dead : {NodeId{0}, NodeId{62}}) {
    const auto plan = plan_rebuild(change->map, std::span(&dead, 1));
    ASSERT_TRUE(plan);
    EXPECT_LE(plan->read_imbalance, 1.03);
  }
}

TEST(ResizeTest, ADrainedNodeHoldsNothingAndTheOthersAreEven) {
  const StripeMap map = map_of(40, even_racks(40, 20));
  const std::vector<NodeId> leaving{5, 17, 25};
  const auto change = drain(map, leaving);
  ASSERT_TRUE(change) << change.error().message;
  const MapBalance even = balance(change->map);
  EXPECT_LE(even.shards_most - even.shards_least, 2U);
  EXPECT_EQ(even.rack_most, 1U);
  const auto shards = shards_of(change->map);
  std::size_t held = 0;
  for (const NodeId node : leaving) {
    EXPECT_EQ(shards[node], 0U);
    held += shards_of(map)[node];
  }
  EXPECT_EQ(change->moves.size(), held);
  // Nodes that are gone stay gone when others join.
  const std::vector<std::uint32_t> rack{0};
  const auto grown = expand(change->map, 1, rack);
  ASSERT_TRUE(grown);
  EXPECT_EQ(shards_of(grown->map)[5], 0U);
  const std::vector<NodeId> one{3};
  EXPECT_EQ(drain(map_of(12), one).error().code, base::Code::kResourceExhausted);
}

}  // namespace
}  // namespace trimtab::placement
