#include "policy/experts/dispatch/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "policy/experts/dispatch/made_layers.h"

namespace trimtab::experts {
namespace {

struct Layer {
  Shape shape;
  SlotMap map;
  std::vector<double> loads;
};

// Heavy-tailed loads on a random map; a third of the experts idle in some.
Layer draw_layer(std::int32_t ranks_max) {
  const auto ranks = *rc::gen::inRange(1, ranks_max + 1);
  const auto width = *rc::gen::inRange(1, 7);
  const auto slots = ranks * width;
  const auto experts = *rc::gen::inRange(width, slots + 1);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const double sigma = *rc::gen::elementOf(std::vector<double>{0.0, 0.5, 1.5, 4.0});
  const bool idle = *rc::gen::arbitrary<bool>();
  base::Prng prng(seed);
  Layer layer{.shape = {.experts = experts, .slots = slots, .ranks = ranks}, .map = {}, .loads = {}};
  layer.map = made::shuffled_map(layer.shape, prng, 4 * slots);
  layer.loads = made::popularity(prng, experts, sigma, 1000.0);
  for (double& load : layer.loads) load = idle && prng.below(3) == 0 ? 0 : load;
  return layer;
}

// Hosts of each expert as a set of ranks.
std::vector<std::uint32_t> host_sets(const Layer& layer) {
  std::vector<std::uint32_t> sets(static_cast<std::size_t>(layer.shape.experts));
  for (std::int32_t slot = 0; slot < layer.shape.slots; ++slot) {
    sets[static_cast<std::size_t>(layer.map[static_cast<std::size_t>(slot)])] |=
        1U << layer.shape.rank_of_slot(slot);
  }
  return sets;
}

// The optimum by its dual: over all sets of ranks, the load that cannot leave the set over the set's size.
double least_peak(const Layer& layer) {
  const std::vector<std::uint32_t> sets = host_sets(layer);
  double best = 0;
  for (std::uint32_t ranks = 1; ranks < 1U << layer.shape.ranks; ++ranks) {
    double trapped = 0;
    for (std::size_t e = 0; e < sets.size(); ++e) trapped += (sets[e] & ~ranks) == 0 ? layer.loads[e] : 0;
    best = std::max(best, trapped / std::popcount(ranks));
  }
  return best;
}

std::vector<double> rank_loads(const Layer& layer, const ShareSolver& solver) {
  std::vector<double> carried(static_cast<std::size_t>(layer.shape.ranks));
  for (std::int32_t slot = 0; slot < layer.shape.slots; ++slot) {
    carried[static_cast<std::size_t>(layer.shape.rank_of_slot(slot))] +=
        solver.share(slot) * layer.loads[static_cast<std::size_t>(layer.map[static_cast<std::size_t>(slot)])];
  }
  return carried;
}

RC_GTEST_PROP(Shares, PeakIsTheLeastOverAllSetsOfRanks, ()) {
  const Layer layer = draw_layer(8);
  auto solver = ShareSolver::make(layer.shape, layer.map, {.sweeps_before = *rc::gen::inRange(0, 3)});
  RC_ASSERT(solver.has_value());
  const auto result = solver->solve(std::span<const double>(layer.loads));
  RC_ASSERT(result.has_value());
  const double least = least_peak(layer);
  RC_ASSERT(std::abs(result->peak_tokens - least) <= 1e-9 * least);
  // The peak is what the shares really give, and not only what the solver says.
  RC_ASSERT(std::abs(std::ranges::max(rank_loads(layer, *solver)) - least) <= 1e-9 * least);
}

RC_GTEST_PROP(Shares, ArePartsOfAWholeAndProveTheirPeak, ()) {
  const Layer layer = draw_layer(40);
  ShareOptions options{.sweeps_before = *rc::gen::inRange(0, 3), .sweeps_after = *rc::gen::inRange(0, 3)};
  auto solver = ShareSolver::make(layer.shape, layer.map, options);
  RC_ASSERT(solver.has_value());
  const auto result = solver->solve(std::span<const double>(layer.loads));
  RC_ASSERT(result.has_value());
  const ShareFlow& flow = solver->flow();
  std::vector<double> sums(layer.loads.size());
  std::vector<std::int64_t> units(layer.loads.size());
  for (std::int32_t slot = 0; slot < layer.shape.slots; ++slot) {
    const auto expert = static_cast<std::size_t>(layer.map[static_cast<std::size_t>(slot)]);
    RC_ASSERT(solver->share(slot) >= 0);
    sums[expert] += solver->share(slot);
    units[expert] += flow.slot_units()[static_cast<std::size_t>(slot)];
  }
  for (std::size_t e = 0; e < sums.size(); ++e) {
    RC_ASSERT(std::abs(sums[e] - 1) <= 1e-12);
    RC_ASSERT(units[e] == flow.expert_units()[e]);
  }
  // The certificate stands by itself: what the tight ranks trap, over their number, is the peak, to a unit.
  std::vector<bool> tight(static_cast<std::size_t>(layer.shape.ranks), solver->tight_ranks().empty());
  for (const std::int32_t rank : solver->tight_ranks()) tight[static_cast<std::size_t>(rank)] = true;
  std::vector<bool> leaves(layer.loads.size());
  for (std::int32_t slot = 0; slot < layer.shape.slots; ++slot) {
    if (!tight[static_cast<std::size_t>(layer.shape.rank_of_slot(slot))]) {
      leaves[static_cast<std::size_t>(layer.map[static_cast<std::size_t>(slot)])] = true;
    }
  }
  std::int64_t trapped = 0;
  for (std::size_t e = 0; e < leaves.size(); ++e) trapped += leaves[e] ? 0 : flow.expert_units()[e];
  const std::int64_t ranks = std::ranges::count(tight, true);
  RC_ASSERT((trapped + ranks - 1) / ranks == flow.peak());
  RC_ASSERT(flow.bound_units() == flow.peak());
}

RC_GTEST_PROP(Shares, SweepsNeverRaiseThePeakAndHistoryDoesNotMatter, ()) {
  const Layer layer = draw_layer(24);
  auto fresh = ShareSolver::make(layer.shape, layer.map);
  auto used = ShareSolver::make(layer.shape, layer.map);
  RC_ASSERT(fresh && used);
  std::vector<double> others = layer.loads;
  std::ranges::reverse(others);
  RC_ASSERT(used->solve(std::span<const double>(others)).has_value());
  RC_ASSERT(used->solve(std::span<const double>(layer.loads)).has_value());
  RC_ASSERT(fresh->solve(std::span<const double>(layer.loads)).has_value());
  RC_ASSERT(std::ranges::equal(fresh->flow().slot_units(), used->flow().slot_units()));
  ShareFlow flow;
  flow.reset(layer.shape, layer.map);
  RC_ASSERT(flow.load(std::span<const double>(layer.loads)));
  flow.even();
  std::int64_t peak = flow.peak();
  for (int i = 0; i < 4; ++i) {
    flow.sweep();
    RC_ASSERT(flow.peak() <= peak + 1);  // one unit of rounding
    peak = flow.peak();
  }
  RC_ASSERT(flow.level() <= peak);
}

RC_GTEST_PROP(Shares, ReplacingCopiesKeepsAllLoadAndFindsTheSameOptimum, ()) {
  const Layer layer = draw_layer(12);
  ShareFlow flow;
  flow.reset(layer.shape, layer.map);
  RC_ASSERT(flow.load(std::span<const double>(layer.loads)));
  flow.even();
  flow.level();
  SlotMap map = layer.map;
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  for (int i = 0; i < 8; ++i) {
    const auto slot = static_cast<std::int32_t>(prng.below(map.size()));
    const auto expert = static_cast<std::int32_t>(prng.below(layer.loads.size()));
    const auto copies = copies_of(layer.shape, map);
    SlotMap next = map;
    next[static_cast<std::size_t>(slot)] = expert;
    if (copies[static_cast<std::size_t>(map[static_cast<std::size_t>(slot)])] < 2 ||
        !check(layer.shape, next, /*distinct=*/true) || map == next) {
      continue;
    }
    map = next;
    flow.replace(slot, expert);
    flow.level();
  }
  RC_ASSERT(std::ranges::equal(flow.map(), map));
  RC_ASSERT(std::accumulate(flow.rank_units().begin(), flow.rank_units().end(), std::int64_t{0}) ==
            flow.total());
  const double least = least_peak({.shape = layer.shape, .map = map, .loads = layer.loads});
  RC_ASSERT(std::abs(static_cast<double>(flow.peak()) * flow.unit_tokens() - least) <= 1e-9 * least);
}

// Every map of 3 ranks x 2 slots with up to 6 experts, with loads that make several sets tight.
TEST(Shares, AllSmallMaps) {
  std::int64_t solved = 0;
  for (std::int32_t experts = 2; experts <= 6; ++experts) {
    const Shape shape{.experts = experts, .slots = 6, .ranks = 3};
    std::int64_t maps = 1;
    for (int i = 0; i < 6; ++i) maps *= experts;
    for (std::int64_t code = 0; code < maps; ++code) {
      Layer layer{.shape = shape, .map = {}, .loads = {}};
      for (std::int64_t rest = code, i = 0; i < 6; ++i, rest /= experts) {
        layer.map.push_back(static_cast<std::int32_t>(rest % experts));
      }
      auto solver = ShareSolver::make(shape, layer.map);
      if (!solver) continue;  // an expert is missing
      layer.loads = {7, 1, 4, 0, 9, 2};
      layer.loads.resize(static_cast<std::size_t>(experts));
      ASSERT_NEAR(solver->solve(std::span<const double>(layer.loads))->peak_tokens, least_peak(layer), 1e-9);
      ++solved;
    }
  }
  EXPECT_EQ(solved, 62 + 540 + 1560 + 1800 + 720);  // maps onto all experts
}

TEST(Shares, HostileLoads) {
  const Shape shape{.experts = 4, .slots = 6, .ranks = 3};
  const SlotMap map = {0, 1, 0, 2, 1, 3};
  auto solver = *ShareSolver::make(shape, map);
  using Loads = std::vector<double>;
  const auto peak = [&](const Loads& loads) { return solver.solve(std::span<const double>(loads)); };
  EXPECT_EQ(peak({0, 0, 0, 0})->peak_tokens, 0);
  EXPECT_EQ(solver.share(0), 0.5);
  EXPECT_NEAR(peak({1e300, 1e300, 0, 0})->peak_tokens / (2e300 / 3), 1, 1e-9);
  EXPECT_NEAR(peak({1e-250, 0, 0, 0})->peak_tokens / 5e-251, 1, 1e-9) << "tiny loads too";
  EXPECT_EQ(solver.solve(std::vector<std::int64_t>{std::int64_t{1} << 40, 0, 0, 3})->peak_tokens,
            static_cast<double>(std::int64_t{1} << 39));
  EXPECT_NE(peak({0, NAN, 0, 0}).error().message.find("expert 1 has a load of nan"), std::string::npos);
  EXPECT_NE(peak({0, 0, -2, 0}).error().message.find("expert 2 has a load of -2"), std::string::npos);
  EXPECT_NE(peak({0, 0, 0, INFINITY}).error().message.find("expert 3 has a load of inf"), std::string::npos);
  EXPECT_NE(peak({1e308, 1e308, 0, 0}).error().message.find("overflow"), std::string::npos);
  EXPECT_NE(peak({1, 2}).error().message.find("2 experts for a layer of 4"), std::string::npos);
}

// Two copies on one rank are one place to go to.
TEST(Shares, DuplicatesOnARankShareNothing) {
  const Shape shape{.experts = 3, .slots = 6, .ranks = 2};
  auto solver = *ShareSolver::make(shape, SlotMap{0, 0, 1, 0, 2, 2});
  ASSERT_TRUE(solver.solve(std::vector<std::int64_t>{60, 10, 30}).has_value());
  std::vector<double> shares(6);
  solver.shares(shares);
  EXPECT_THAT(shares[0], testing::DoubleNear(40.0 / 60, 1e-9));
  EXPECT_EQ(shares[1], 0);
  EXPECT_EQ(shares[2], 1);
  EXPECT_THAT(shares[3], testing::DoubleNear(20.0 / 60, 1e-9));
  EXPECT_EQ(shares[4], 1);
  EXPECT_EQ(shares[5], 0);
}

// The same bits on every machine: a digest of the shares of a hundred layers.
TEST(Shares, SameBitsEverywhere) {
  std::uint64_t digest = 0xcbf29ce484222325ULL;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    base::Prng prng(seed);
    const Shape shape{.experts = 384, .slots = 448, .ranks = 64};
    const SlotMap map = made::shuffled_map(shape, prng, 1000);
    std::vector<std::int64_t> counts;
    for (int e = 0; e < 384; ++e)
      counts.push_back(static_cast<std::int64_t>(prng.below(1 + prng.below(2000))));
    auto solver = *ShareSolver::make(shape, map);
    ASSERT_TRUE(solver.solve(std::span<const std::int64_t>(counts)).has_value());
    for (const std::int64_t units : solver.flow().slot_units()) {
      digest = (digest ^ static_cast<std::uint64_t>(units)) * 0x100000001b3ULL;
    }
  }
  EXPECT_EQ(digest, 6021157991355404069ULL);
}

}  // namespace
}  // namespace trimtab::experts
