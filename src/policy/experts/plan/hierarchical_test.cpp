#include "policy/experts/plan/hierarchical.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

LoadWindow random_window(std::int32_t steps, std::int32_t experts, base::Prng& prng) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(steps * experts));
  std::vector<std::uint64_t> scale(static_cast<std::size_t>(experts));
  for (auto& one : scale) one = 1 + prng.below(1 + prng.below(200));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = static_cast<std::int32_t>(prng.below(scale[i % scale.size()] * 2));
  }
  return *LoadWindow::make(counts.data(), steps, experts, experts);
}

PlanOptions hierarchical(Start start = Start::kFresh) {
  PlanOptions options;
  options.scope = Scope::kHierarchical;
  options.start = start;
  return options;
}

Shape random_shape() {
  Shape shape;
  shape.nodes = *rc::gen::inRange(1, 5);
  shape.groups = shape.nodes * *rc::gen::inRange(1, 4);
  shape.experts = shape.groups * *rc::gen::inRange(1, 5);
  shape.ranks = shape.nodes * *rc::gen::inRange(1, 4);
  const std::int32_t least = (shape.experts + shape.ranks - 1) / shape.ranks;
  shape.slots = shape.ranks * *rc::gen::inRange(least, shape.experts / shape.nodes + 1);
  return shape;
}

RC_GTEST_PROP(PlanHierarchical, AGroupNeverLeavesItsNode, ()) {
  const Shape shape = random_shape();
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const LoadWindow window = random_window(*rc::gen::inRange(1, 20), shape.experts, prng);
  const auto fresh = plan_hierarchical(shape, window, {}, hierarchical());
  RC_ASSERT(fresh.has_value());
  RC_ASSERT(check(shape, fresh->map, true).has_value());
  const auto nodes = nodes_of_groups(shape, fresh->map);
  RC_ASSERT(!nodes.empty());

  const LoadWindow later = random_window(8, shape.experts, prng);
  const auto moved = plan_hierarchical(shape, later, fresh->map, hierarchical(Start::kIncremental));
  RC_ASSERT(moved.has_value());
  RC_ASSERT(check(shape, moved->map, true).has_value());
  RC_ASSERT(nodes_of_groups(shape, moved->map) == nodes);
  RC_ASSERT(moved->reason.received == received_copies(shape, fresh->map, moved->map));

  const auto again = plan_hierarchical(shape, later, fresh->map, hierarchical());
  RC_ASSERT(!nodes_of_groups(shape, again->map).empty());
  RC_ASSERT(plan_hierarchical(shape, later, fresh->map, hierarchical())->map == again->map);
}

RC_GTEST_PROP(PlanHierarchical, KeepsToItsCapOfMoves, ()) {
  const Shape shape{32, 48, 8, 4, 8};
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const SlotMap start = plan_hierarchical(shape, random_window(8, 32, prng), {}, hierarchical())->map;
  const LoadWindow later = random_window(8, 32, prng);
  PlanOptions options = hierarchical(Start::kIncremental);
  options.move_price = 0;
  options.moves_max = *rc::gen::inRange(0, 12);
  const auto plan = plan_hierarchical(shape, later, start, options);
  RC_ASSERT(received_copies(shape, start, plan->map) <= options.moves_max);
}

TEST(PlanHierarchical, MovesNothingOnNodesThatDoNotMatter) {
  // Node 1 has a hundredth of node 0's load: whatever its ranks do, node 0 sets the pace.
  const Shape shape{16, 24, 4, 2, 2};
  std::vector<std::int32_t> counts;
  for (std::int32_t e = 0; e < 16; ++e) counts.push_back(e < 8 ? 1000 + 300 * e : 10 * (e - 7));
  const LoadWindow window = *LoadWindow::make(counts.data(), 1, 16, 16);
  const SlotMap start{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11};
  const auto plan = plan_hierarchical(shape, window, start, hierarchical(Start::kIncremental));
  EXPECT_TRUE(std::equal(start.begin() + 12, start.end(), plan->map.begin() + 12));
}

TEST(PlanHierarchical, AMixedMapIsPlannedAfresh) {
  const Shape shape{16, 24, 4, 2, 4};
  base::Prng prng(4);
  const LoadWindow window = random_window(10, 16, prng);
  const SlotMap mixed = initial_map(shape);
  ASSERT_TRUE(nodes_of_groups(shape, mixed).empty());
  const auto plan = plan_hierarchical(shape, window, mixed, hierarchical(Start::kIncremental));
  EXPECT_FALSE(nodes_of_groups(shape, plan->map).empty());
  EXPECT_EQ(plan->reason.received, received_copies(shape, mixed, plan->map));
}

TEST(PlanHierarchical, RefusesWhatCannotBe) {
  base::Prng prng(4);
  const LoadWindow window = random_window(4, 24, prng);
  const auto groups = plan_hierarchical({24, 32, 8, 4, 6}, window, {}, hierarchical());
  EXPECT_NE(groups.error().message.find("4 nodes do not divide 6 groups"), std::string::npos);
  EXPECT_NE(groups.error().message.find("global"), std::string::npos);
  const auto crowded = plan_hierarchical({24, 72, 8, 4, 4}, window, {}, hierarchical());
  EXPECT_NE(crowded.error().message.find("9 slots a rank are more than the 6 experts of a node"),
            std::string::npos);
  EXPECT_FALSE(plan_hierarchical({12, 16, 4, 2, 2}, window, {}, hierarchical()));
  EXPECT_FALSE(plan_hierarchical({24, 32, 8, 4, 4}, window, {}, hierarchical(Start::kIncremental)));
}

double node_peaks(const Shape& shape, const LoadWindow& window, const std::vector<std::int32_t>& node_of) {
  double peaks = 0;
  for (std::int32_t step = 0; step < window.steps(); ++step) {
    std::vector<double> load(static_cast<std::size_t>(shape.nodes));
    for (std::int32_t e = 0; e < shape.experts; ++e) {
      const auto group = static_cast<std::size_t>(shape.group_of_expert(e));
      load[static_cast<std::size_t>(node_of[group])] +=
          static_cast<double>(window.of(e)[static_cast<std::size_t>(step)]);
    }
    peaks += std::ranges::max(load);
  }
  return peaks;
}

RC_GTEST_PROP(PackGroups, IsTheBestPartitionWhileThereAreFew, ()) {
  const auto [groups, nodes] =
      *rc::gen::element(std::pair{6, 3}, std::pair{6, 2}, std::pair{8, 4}, std::pair{8, 2}, std::pair{4, 4});
  const Shape shape{groups * 2, groups * 2, nodes, nodes, groups};
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const LoadWindow window = random_window(5, shape.experts, prng);
  std::vector<std::int32_t> each(static_cast<std::size_t>(groups));
  for (std::size_t i = 0; i < each.size(); ++i) each[i] = static_cast<std::int32_t>(i) / (groups / nodes);
  double best = node_peaks(shape, window, each);
  do best = std::min(best, node_peaks(shape, window, each));
  while (std::ranges::next_permutation(each).found);
  const auto packed = pack_groups(shape, window);
  RC_ASSERT(node_peaks(shape, window, packed) == best);
  for (std::int32_t node = 0; node < nodes; ++node)
    RC_ASSERT(std::ranges::count(packed, node) == groups / nodes);
}

TEST(PackGroups, OfManyGroupsIsEvenAndNearTheMean) {
  const Shape shape{64, 64, 8, 8, 64};
  base::Prng prng(8);
  const LoadWindow window = random_window(1, 64, prng);
  const auto packed = pack_groups(shape, window);
  for (std::int32_t node = 0; node < 8; ++node) EXPECT_EQ(std::ranges::count(packed, node), 8);
  const auto totals = window.totals();
  const double mean = std::accumulate(totals.begin(), totals.end(), 0.0) / 8;
  EXPECT_LT(node_peaks(shape, window, packed), 1.02 * mean);
}

}  // namespace
}  // namespace trimtab::experts
