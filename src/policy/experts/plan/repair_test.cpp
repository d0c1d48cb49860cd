#include "policy/experts/plan/repair.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "policy/experts/dispatch/made_layers.h"
#include "policy/experts/dispatch/shares.h"

namespace trimtab::experts {
namespace {

struct Layer {
  Shape shape;
  SlotMap map;
  std::vector<double> loads;
};

Layer draw_layer(std::int32_t ranks_max, std::int32_t width_max) {
  const auto ranks = *rc::gen::inRange(2, ranks_max + 1);
  const auto width = *rc::gen::inRange(2, width_max + 1);
  const auto slots = ranks * width;
  const auto experts = *rc::gen::inRange(width, slots);
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  Layer layer{.shape = {.experts = experts, .slots = slots, .ranks = ranks}, .map = {}, .loads = {}};
  layer.map = made::shuffled_map(layer.shape, prng, 4 * slots);
  layer.loads = made::popularity(prng, experts, *rc::gen::elementOf(std::vector<double>{0.3, 1.0, 2.5}), 1e4);
  return layer;
}

// The least overload of any shares, by its dual: over sets of ranks, the load trapped in the set less what
// the set may carry.
double least_overload(const Shape& shape, const SlotMap& map, const std::vector<double>& loads,
                      double capacity) {
  std::vector<std::uint32_t> sets(loads.size());
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    sets[static_cast<std::size_t>(map[static_cast<std::size_t>(slot)])] |= 1U << shape.rank_of_slot(slot);
  }
  double most = 0;
  for (std::uint32_t ranks = 1; ranks < 1U << shape.ranks; ++ranks) {
    double trapped = 0;
    for (std::size_t e = 0; e < sets.size(); ++e) trapped += (sets[e] & ~ranks) == 0 ? loads[e] : 0;
    most = std::max(most, trapped - capacity * std::popcount(ranks));
  }
  return most;
}

double mean_of(const Layer& layer) {
  double sum = 0;
  for (const double load : layer.loads) sum += load;
  return sum / layer.shape.ranks;
}

RC_GTEST_PROP(Repair, MapsAreLegalAndNeverWorse, ()) {
  const Layer layer = draw_layer(24, 6);
  const RepairOptions options{.tolerance = *rc::gen::elementOf(std::vector<double>{0, 0.01, 0.1}),
                              .gain_min = *rc::gen::elementOf(std::vector<double>{0, 0.02}),
                              .moves_max = *rc::gen::inRange(0, 9)};
  Repairer repairer(options);
  const auto repair = repairer.repair(layer.shape, layer.loads, layer.map);
  RC_ASSERT(repair.has_value());
  RC_ASSERT(check(layer.shape, repair->map, /*distinct=*/true).has_value());
  RC_ASSERT(repair->received <= options.moves_max);
  RC_ASSERT(received_copies(layer.shape, layer.map, repair->map) <= repair->received);
  RC_ASSERT(repair->value <= repair->value_before);
  RC_ASSERT(repair->overload_before - repair->overload >=
            options.gain_min * static_cast<double>(repair->received) - 1e-9);
  // What it says of both maps is what the solver says.
  for (const bool after : {false, true}) {
    auto solver = *ShareSolver::make(layer.shape, after ? repair->map : layer.map);
    const auto result = *solver.solve(std::span<const double>(layer.loads));
    const double value = result.peak_tokens / result.mean_tokens;
    RC_ASSERT(std::abs(value - (after ? repair->value : repair->value_before)) <= 1e-9 * value);
  }
}

// On small layers, against all single changes: it finds the best, and none only if there is none.
RC_GTEST_PROP(Repair, FindsTheBestSingleCopy, ()) {
  const Layer layer = draw_layer(4, 3);
  const double mean = mean_of(layer), capacity = mean * 1.01;
  const double before = least_overload(layer.shape, layer.map, layer.loads, capacity);
  const std::vector<std::int32_t> copies = copies_of(layer.shape, layer.map);
  double best = before;
  for (std::size_t slot = 0; slot < layer.map.size(); ++slot) {
    if (copies[static_cast<std::size_t>(layer.map[slot])] < 2) continue;
    for (std::int32_t e = 0; e < layer.shape.experts; ++e) {
      SlotMap map = layer.map;
      map[slot] = e;
      if (map == layer.map || !check(layer.shape, map, true)) continue;
      best = std::min(best, least_overload(layer.shape, map, layer.loads, capacity));
    }
  }
  Repairer repairer({.tolerance = 0.01, .gain_min = 0.02, .moves_max = 1});
  const auto repair = repairer.repair(layer.shape, layer.loads, layer.map);
  RC_ASSERT(repair.has_value());
  RC_ASSERT(std::abs(repair->overload_before * mean - before) <= 1e-6);
  const bool worth = before - best >= 0.02 * mean + 1e-6;
  const double after = least_overload(layer.shape, repair->map, layer.loads, capacity);
  if (worth && repair->received > 0) RC_ASSERT(after <= best + 1e-6);
  // It may decline only what would raise the peak.
  if (worth && repair->received == 0) RC_ASSERT(repair->map == layer.map);
  RC_CLASSIFY(worth && repair->received > 0, "repaired");
  RC_CLASSIFY(worth && repair->received == 0, "declined");
}

RC_GTEST_PROP(Repair, HistoryDoesNotMatter, ()) {
  const Layer layer = draw_layer(16, 5);
  Repairer fresh, used;
  std::vector<double> others = layer.loads;
  std::ranges::reverse(others);
  RC_ASSERT(used.repair(layer.shape, others, layer.map).has_value());
  RC_ASSERT(used.repair(layer.shape, layer.loads, layer.map)->map ==
            fresh.repair(layer.shape, layer.loads, layer.map)->map);
}

TEST(Repair, ByHand) {
  // Expert 0 alone is twice what a rank should carry; expert 2 has a copy to spare.
  const Shape shape{.experts = 5, .slots = 6, .ranks = 3};
  const SlotMap map = {0, 1, 2, 3, 2, 4};
  Repairer repairer;
  const auto repair = *repairer.repair(shape, std::vector<double>{60, 6, 10, 7, 7}, map);
  EXPECT_NEAR(repair.value_before, 66 / 30.0, 1e-9);
  EXPECT_NEAR(repair.value, 73.0 / 2 / 30, 1e-9);  // the third rank has 17 whatever happens
  EXPECT_EQ(repair.received, 1);
  EXPECT_EQ(repair.map, (SlotMap{0, 1, 0, 3, 2, 4}));
}

TEST(Repair, ChangesSlotsWhenNoCopyCanBeSpared) {
  const Shape shape{.experts = 4, .slots = 4, .ranks = 2};
  Repairer repairer;
  const auto repair = *repairer.repair(shape, std::vector<double>{50, 40, 6, 4}, SlotMap{0, 1, 2, 3});
  EXPECT_EQ(repair.received, 2);
  EXPECT_NEAR(repair.value, 54.0 / 50, 1e-9);  // 50 + 4 or 46: the best of all pairings
}

TEST(Repair, LeavesALevelMapAlone) {
  base::Prng prng(3);
  const Shape shape{.experts = 384, .slots = 416, .ranks = 8};
  const auto loads = made::popularity(prng, 384, 0.8, 8 * 1536);
  const SlotMap map = made::greedy_map(shape, loads);
  Repairer repairer;
  const auto repair = *repairer.repair(shape, loads, map);
  EXPECT_EQ(repair.map, map);
  EXPECT_EQ(repair.received, 0);
  EXPECT_LT(repair.value, 1.01);
}

// One expert becomes hot on 64 ranks: a few copies mend it, and the same ones on every machine.
TEST(Repair, MendsAHotExpertAndGivesTheSameBytes) {
  const Shape shape{.experts = 384, .slots = 448, .ranks = 64};
  std::uint64_t digest = 0xcbf29ce484222325ULL;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    base::Prng prng(seed);
    // Whole numbers of two draws: heavy-tailed, and no library's exp() in the digest.
    std::vector<double> loads(384);
    for (double& load : loads) load = static_cast<double>(32 + prng.below(32 + prng.below(704)));
    const SlotMap map = made::greedy_map(shape, loads);
    ASSERT_EQ(duplicate_copies(shape, map), 0);
    loads[prng.below(384)] += 4096;
    Repairer repairer({.moves_max = 64});
    const auto repair = *repairer.repair(shape, loads, map);
    EXPECT_GT(repair.value_before, 1.5) << seed;
    EXPECT_LT(repair.value, 1.02) << seed;
    EXPECT_LE(repair.received, 32) << seed;
    for (const std::int32_t expert : repair.map) {
      digest = (digest ^ static_cast<std::uint64_t>(expert)) * 0x100000001b3ULL;
    }
  }
  EXPECT_EQ(digest, 6481806308279019961ULL);
}

TEST(Repair, HostileInput) {
  const Shape shape{.experts = 3, .slots = 4, .ranks = 2};
  const SlotMap map = {0, 1, 2, 0};
  Repairer repairer;
  EXPECT_EQ(repairer.repair(shape, std::vector<double>{0, 0, 0}, map)->map, map);
  EXPECT_NE(repairer.repair(shape, std::vector<double>{0, NAN, 0}, map).error().message.find("expert 1"),
            std::string::npos);
  EXPECT_NE(repairer.repair(shape, std::vector<double>{1}, map).error().message.find("1 experts"),
            std::string::npos);
  EXPECT_NE(
      repairer.repair(shape, std::vector<double>{1, 1, 1}, SlotMap{0, 0, 1, 2}).error().message.find("twice"),
      std::string::npos);
  Repairer wrong({.tolerance = -1});
  EXPECT_NE(wrong.repair(shape, std::vector<double>{1, 1, 1}, map).error().message.find("tolerance -1"),
            std::string::npos);
  const Shape one{.experts = 2, .slots = 2, .ranks = 1};
  EXPECT_EQ(repairer.repair(one, std::vector<double>{5, 1}, SlotMap{0, 1})->value, 1);
}

}  // namespace
}  // namespace trimtab::experts
