#include "policy/experts/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/hash.h"
#include "base/prng.h"
#include "policy/experts/plan/forecast.h"

namespace trimtab::experts {
namespace {

using testing::HasSubstr;

LoadWindow window_of(const std::vector<std::int64_t>& loads, std::int32_t experts) {
  const auto steps = static_cast<std::int32_t>(loads.size() / static_cast<std::size_t>(experts));
  return LoadWindow::make(loads.data(), steps, experts, experts).value();
}

/// Skewed counts: a few experts far above the rest, all wobbling.
std::vector<std::int64_t> skewed(std::uint64_t seed, std::int32_t steps, std::int32_t experts,
                                 std::int64_t mean) {
  base::Prng prng(seed);
  std::vector<std::int64_t> rate(static_cast<std::size_t>(experts));
  for (std::int64_t& r : rate) {
    const std::uint64_t kind = prng.below(10);
    r = kind == 0 ? 6 * mean : kind < 4 ? 2 * mean : mean / 2;
  }
  std::vector<std::int64_t> loads;
  for (std::int32_t step = 0; step < steps; ++step) {
    for (const std::int64_t r : rate)
      loads.push_back(r / 2 + static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(r) + 1)));
  }
  return loads;
}

void expect_legal(const Shape& shape, const SlotMap& map) {
  const base::Status status = check(shape, map, true);
  ASSERT_TRUE(status.has_value()) << status.error().message;
}

Shape arbitrary_shape() {
  Shape shape;
  shape.ranks = *rc::gen::inRange(1, 9);
  shape.experts = *rc::gen::inRange(1, 40);
  const std::int32_t least = (shape.experts + shape.ranks - 1) / shape.ranks;
  const std::int32_t width = *rc::gen::inRange(least, std::min(shape.experts, least + 5) + 1);
  shape.slots = width * shape.ranks;
  return shape;
}

std::vector<std::int64_t> arbitrary_loads(const Shape& shape) {
  const std::int32_t steps = *rc::gen::inRange(1, 20);
  const std::int64_t most = *rc::gen::element<std::int64_t>(0, 1, 50, 1'000'000, 5'000'000'000);
  return *rc::gen::container<std::vector<std::int64_t>>(
      static_cast<std::size_t>(steps) * static_cast<std::size_t>(shape.experts),
      rc::gen::inRange<std::int64_t>(0, most + 1));
}

RC_GTEST_PROP(PlannerProperty, EveryPlanIsLegalAndRepeatable, ()) {
  const Shape shape = arbitrary_shape();
  const LoadWindow window = window_of(arbitrary_loads(shape), shape.experts);
  PlanOptions options;
  options.effort = *rc::gen::element(Effort::kFast, Effort::kDefault, Effort::kQuality);
  const Plan fresh = plan_layer(shape, window, {}, options).value();
  RC_ASSERT(check(shape, fresh.map, true).has_value());
  RC_ASSERT(plan_layer(shape, window, {}, options).value().map == fresh.map);
  RC_ASSERT(fresh.reason.balance >= 0.999);

  const LoadWindow later = window_of(arbitrary_loads(shape), shape.experts);
  options.start = Start::kIncremental;
  options.period_steps = *rc::gen::element(0, 5, 100);
  const Plan next = plan_layer(shape, later, fresh.map, options).value();
  RC_ASSERT(check(shape, next.map, true).has_value());
  RC_ASSERT(next.reason.received == received_copies(shape, fresh.map, next.map));
}

RC_GTEST_PROP(PlannerProperty, TheCapOnMovesHolds, ()) {
  const Shape shape = arbitrary_shape();
  const Plan fresh = plan_layer(shape, window_of(arbitrary_loads(shape), shape.experts), {}, {}).value();
  PlanOptions options;
  options.start = Start::kIncremental;
  options.move_price = 0;
  options.moves_max = *rc::gen::inRange(0, 12);
  options.period_steps = *rc::gen::element(5, 100);
  const LoadWindow later = window_of(arbitrary_loads(shape), shape.experts);
  const Plan next = plan_layer(shape, later, fresh.map, options).value();
  RC_ASSERT(next.reason.received <= options.moves_max);
  RC_ASSERT(check(shape, next.map, true).has_value());
}

/// The 32-norm of the ranks' forecast loads, relative to the mean rank: what incremental plans lower.
double forecast_peak(const Shape& shape, const SlotMap& map, const LoadWindow& window) {
  const std::vector<float> loads = forecast_loads(window);
  const std::vector<std::int32_t> copies = copies_of(shape, map);
  double total = 0, powers = 0;
  for (const float load : loads) total += static_cast<double>(load);
  if (total == 0) return 0;
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    double level = 0;
    for (std::int32_t slot = rank * shape.slots_per_rank(); slot < (rank + 1) * shape.slots_per_rank();
         ++slot) {
      const auto expert = static_cast<std::size_t>(map[static_cast<std::size_t>(slot)]);
      level += static_cast<double>(loads[expert]) * shape.ranks / total / copies[expert];
    }
    powers += std::pow(level, 32);
  }
  return std::pow(powers, 1.0 / 32);
}

RC_GTEST_PROP(PlannerProperty, EveryReceivedCopyPaysItsPrice, ()) {
  const Shape shape = arbitrary_shape();
  const Plan fresh = plan_layer(shape, window_of(arbitrary_loads(shape), shape.experts), {}, {}).value();
  PlanOptions options;
  options.start = Start::kIncremental;
  options.move_price = *rc::gen::element(0.0, 1e-4, 1e-2, 0.1);
  options.period_steps = 5;
  const LoadWindow later = window_of(arbitrary_loads(shape), shape.experts);
  const Plan next = plan_layer(shape, later, fresh.map, options).value();
  const double paid = options.move_price * static_cast<double>(next.reason.received);
  RC_ASSERT(forecast_peak(shape, next.map, later) + paid <= forecast_peak(shape, fresh.map, later) + 1e-6);
}

TEST(Planner, SameBytesOnEveryMachine) {
  // Whole-number loads, fixed seeds: these digests hold for every processor, compiler and thread count.
  std::uint64_t hash = 0;
  for (const Shape shape : {Shape{64, 80, 8}, Shape{96, 128, 32}}) {
    for (const std::int32_t steps : {40, 300}) {
      const LoadWindow window = window_of(skewed(11, steps, shape.experts, 700), shape.experts);
      const LoadWindow later = window_of(skewed(12, steps, shape.experts, 700), shape.experts);
      for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kQuality}) {
        PlanOptions options;
        options.effort = effort;
        options.recency_steps = effort == Effort::kFast ? 15 : 0;
        const Plan fresh = plan_layer(shape, window, {}, options).value();
        options.start = Start::kIncremental;
        options.move_price = 1e-3;
        const Plan next = plan_layer(shape, later, fresh.map, options).value();
        hash = base::mix(hash, base::checksum_of(std::span<const std::int32_t>(fresh.map)));
        hash = base::mix(hash, base::checksum_of(std::span<const std::int32_t>(next.map)));
      }
    }
  }
  EXPECT_EQ(hash, 8947657570126254307ULL);
}

TEST(Planner, SkewIsLevelled) {
  const Shape shape{64, 80, 8};
  const LoadWindow window = window_of(skewed(3, 50, 64, 1000), 64);
  const SlotMap start = initial_map(shape);
  const Plan plan = plan_layer(shape, window, start, {}).value();
  expect_legal(shape, plan.map);
  EXPECT_GT(balance_of(shape, start, window).of_sums, 1.2);
  EXPECT_LT(plan.reason.balance, 1.1);
  EXPECT_EQ(plan.reason.balance, balance_of(shape, plan.map, window).of_sums);
}

TEST(Planner, BalanceIsThatOfTheDefinition) {
  // Ranks {0, 1}, {2, 0}: expert 0's 6 tokens are shared 3 and 3; loads 3 + 1 and 5 + 3; then none at all.
  const Shape shape{3, 4, 2};
  const LoadWindow window = window_of({6, 1, 5, 0, 0, 0}, 3);
  const Balance balance = balance_of(shape, SlotMap{0, 1, 2, 0}, window);
  EXPECT_DOUBLE_EQ(balance.of_sums, 8.0 / 6.0);
  EXPECT_DOUBLE_EQ(balance.mean_ratio, (8.0 / 6.0 + 1) / 2);
}

TEST(Planner, ErrorsNameTheValueAndTheFix) {
  const LoadWindow window = window_of({1, 2, 3, 4}, 4);
  const auto said = [&](const Shape& shape, std::span<const std::int32_t> current, PlanOptions options) {
    const auto plan = plan_layer(shape, window, current, options);
    return plan ? std::string() : plan.error().message;
  };
  PlanOptions incremental;
  incremental.start = Start::kIncremental;
  EXPECT_THAT(said({4, 7, 2}, {}, {}), HasSubstr("7 physical slots"));
  EXPECT_THAT(said({5, 6, 2}, {}, {}), HasSubstr("the window has 4 experts, the shape 5"));
  EXPECT_THAT(said({4, 6, 2}, {}, incremental), HasSubstr("none was given"));
  EXPECT_THAT(said({4, 6, 2}, SlotMap{0, 1, 2, 3}, incremental), HasSubstr("4 slots, the shape 6"));
  PlanOptions odd;
  odd.recency_steps = std::nan("");
  EXPECT_THAT(said({4, 6, 2}, {}, odd), HasSubstr("recency_steps nan"));
  odd.recency_steps = -3;
  EXPECT_THAT(said({4, 6, 2}, {}, odd), HasSubstr("recency_steps -3"));
  incremental.move_price = std::nan("");
  EXPECT_THAT(said({4, 6, 2}, SlotMap{0, 1, 2, 3, 0, 1}, incremental), HasSubstr("move_price nan"));
}

TEST(PlannerHostile, NoLoadIsSpreadEvenly) {
  const Shape shape{16, 24, 4};
  const Plan plan = plan_layer(shape, window_of(std::vector<std::int64_t>(32), 16), {}, {}).value();
  expect_legal(shape, plan.map);
  EXPECT_EQ(plan.reason.balance, 1);
  EXPECT_EQ(std::ranges::max(copies_of(shape, plan.map)), 2);
}

TEST(PlannerHostile, EqualLargeLoadsGiveNobodyAllCopies) {
  const Shape shape{16, 24, 4};
  const Plan plan =
      plan_layer(shape, window_of(std::vector<std::int64_t>(32, 1'000'000), 16), {}, {}).value();
  expect_legal(shape, plan.map);
  EXPECT_EQ(std::ranges::max(copies_of(shape, plan.map)), 2);
  EXPECT_LT(plan.reason.balance, 1.2);
}

TEST(PlannerHostile, OneHotExpertIsOnEveryRankOnce) {
  const Shape shape{16, 32, 4};
  std::vector<std::int64_t> loads(16);
  loads[5] = 3'000'000'000;
  const Plan plan = plan_layer(shape, window_of(loads, 16), {}, {}).value();
  expect_legal(shape, plan.map);
  EXPECT_EQ(copies_of(shape, plan.map)[5], 4);
  EXPECT_DOUBLE_EQ(plan.reason.balance, 1);
}

TEST(PlannerHostile, ExtremesOfShape) {
  for (const Shape shape : {Shape{8, 8, 1}, Shape{1, 1, 1}, Shape{1, 1023, 1023}, Shape{8, 8, 8},
                            Shape{4, 16, 4}, Shape{2, 2046, 1023}, Shape{3, 1023, 1023}}) {
    const LoadWindow window = window_of(skewed(1, 4, shape.experts, 100), shape.experts);
    const Plan plan = plan_layer(shape, window, {}, {}).value();
    expect_legal(shape, plan.map);
    PlanOptions incremental;
    incremental.start = Start::kIncremental;
    expect_legal(shape, plan_layer(shape, window, plan.map, incremental).value().map);
  }
}

TEST(PlannerIncremental, DuplicatesOfOtherPlannersAreReplaced) {
  const Shape shape{6, 8, 2};
  const LoadWindow window = window_of(skewed(5, 10, 6, 50), 6);
  PlanOptions options;
  options.start = Start::kIncremental;
  options.moves_max = 1;
  const Plan plan = plan_layer(shape, window, SlotMap{0, 0, 1, 2, 3, 4, 5, 1}, options).value();
  expect_legal(shape, plan.map);
  EXPECT_EQ(plan.reason.received, 1);
}

/// Experts 0 to 7 rise together in the first half of the window, which is over.
LoadWindow domain_that_ended() {
  std::vector<std::int64_t> loads;
  for (std::int32_t step = 0; step < 80; ++step) {
    for (std::int32_t expert = 0; expert < 32; ++expert) loads.push_back(expert < 8 && step < 40 ? 300 : 100);
  }
  return window_of(loads, 32);
}

TEST(PlannerIncremental, LongPlansKeepApartWhatRisesTogether) {
  // By number, all that rises is on ranks 0 and 1: level now, but not when the domain returns.
  const Shape shape{32, 32, 8};
  const LoadWindow window = domain_that_ended();
  const SlotMap start = initial_map(shape);
  PlanOptions options;
  options.start = Start::kIncremental;
  options.period_steps = 5;
  EXPECT_EQ(plan_layer(shape, window, start, options).value().reason.received, 0);
  options.period_steps = 100;
  const Plan plan = plan_layer(shape, window, start, options).value();
  EXPECT_GT(plan.reason.balance_before, 1.3);
  EXPECT_DOUBLE_EQ(plan.reason.balance, 1);
}

TEST(PlannerIncremental, GoodPlansAreLeftAlone) {
  const Shape shape{384, 416, 8};
  const LoadWindow window = window_of(skewed(8, 40, 384, 100), 384);
  const Plan fresh = plan_layer(shape, window, {}, {}).value();
  PlanOptions options;
  options.start = Start::kIncremental;
  EXPECT_LE(plan_layer(shape, window, fresh.map, options).value().reason.received, 4);
}

}  // namespace
}  // namespace trimtab::experts
