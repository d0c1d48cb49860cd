#include "experts_eval/advise.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trimtab::experts_eval {
namespace {

Loads small_loads(double sigma = 0.8, double drift = 0.002) {
  SyntheticConfig config;
  config.steps = 120, config.layers = 2, config.experts = 64, config.top_k = 4, config.tokens = 1024;
  config.sigma = sigma, config.drift = drift;
  if (drift == 0) config.burst_probability = 0;
  config.seed = 4;
  return *generate(config);
}

TEST(Advise, ReproducesTheMemoryOfTheHandbook) {
  // 32 redundant slots x 58 layers x 44 MB = 81.7 GB, 2.55 GB on each of 32 cards.
  SyntheticConfig config;
  config.steps = 50, config.experts = 256, config.top_k = 8, config.tokens = 32 * 64;
  AdviseOptions options;
  options.ep_sizes = {32}, options.redundant_per_rank = {1}, options.model_layers = 58;
  const AdviseResult result = *advise(*generate(config), options);
  ASSERT_EQ(result.rows.size(), 1U);
  EXPECT_EQ(result.rows[0].slots, 288);
  EXPECT_EQ(result.rows[0].redundant, 32);
  EXPECT_EQ(result.rows[0].memory_bytes, 81'664'000'000);
  EXPECT_EQ(result.rows[0].memory_bytes_per_rank, 2'552'000'000);
  EXPECT_NE(describe(result.rows[0]).find("2.55 GB a rank (81.7 GB in all)"), std::string::npos);
}

TEST(Advise, TheCurveFallsAndHasAKnee) {
  AdviseOptions options;
  options.ep_sizes = {8, 4}, options.redundant_per_rank = {0, 1, 2, 4, 8};
  const AdviseResult result = *advise(small_loads(1.2), options);
  ASSERT_EQ(result.rows.size(), 10U);
  EXPECT_EQ(result.steps_scored, 80);
  EXPECT_EQ(result.layers_scored, 2);
  for (const std::size_t begin : {0U, 5U}) {
    int knees = 0;
    for (std::size_t i = begin; i < begin + 5; ++i) {
      const Advice& row = result.rows[i];
      EXPECT_EQ(row.slots, 64 + row.redundant);
      EXPECT_GT(row.balance_none, row.balance);
      EXPECT_GE(row.balance, 1.0);
      knees += row.knee ? 1 : 0;
    }
    EXPECT_EQ(knees, 1);
    EXPECT_GT(result.rows[begin].balance, result.rows[begin + 4].balance);
    EXPECT_FALSE(result.rows[begin].knee);
    EXPECT_FALSE(result.rows[begin + 4].knee);
  }
}

TEST(Advise, ReckonsWhatItSays) {
  AdviseOptions options;
  options.redundant_per_rank = {1}, options.period_steps = {10}, options.model_layers = 10;
  options.moe_step_share = 0.5, options.step_ns = 20'000'000, options.link_bytes_per_second = 1e12;
  const Advice row = advise(small_loads(), options)->rows[0];
  const double saved = 0.5 * (1 - row.balance / row.balance_none);
  EXPECT_DOUBLE_EQ(row.step_saved_ratio, saved);
  EXPECT_NEAR(static_cast<double>(row.plan_moves_ns), row.moves_per_plan * 10 * 44e6 / 8 / 1e12 * 1e9, 1);
  EXPECT_NEAR(row.step_saved_net_ratio, saved - row.moves_per_layer_step * 10 * 44e6 / 8 / 1e12 * 1e9 / 20e6,
              1e-12);
  EXPECT_DOUBLE_EQ(row.break_even_steps, static_cast<double>(row.first_moves_ns) / (saved * 20e6));
  options.moves_stall_share = 0;
  const Advice beside = advise(small_loads(), options)->rows[0];
  EXPECT_DOUBLE_EQ(beside.step_saved_net_ratio, beside.step_saved_ratio);
  EXPECT_EQ(beside.break_even_steps, 0);
}

TEST(Advise, SlowLinksAskForLongPeriods) {
  AdviseOptions options;
  options.redundant_per_rank = {1}, options.period_steps = {5, 40};
  options.link_bytes_per_second = 1e15;
  const Advice fast = advise(small_loads(0.8, 0.02), options)->rows[0];
  EXPECT_EQ(fast.period_steps, 5);
  options.link_bytes_per_second = 1e9;
  const Advice slow = advise(small_loads(0.8, 0.02), options)->rows[0];
  EXPECT_EQ(slow.period_steps, 40);
  EXPECT_GT(slow.break_even_steps, 1000 * fast.break_even_steps);
}

TEST(Advise, SaysThatEvenLoadsNeedNothing) {
  Loads loads{60, 1, 16, std::vector<std::int32_t>(60 * 16, 100)};
  AdviseOptions options;
  options.ep_sizes = {4}, options.redundant_per_rank = {0, 1};
  const AdviseResult result = *advise(loads, options);
  EXPECT_DOUBLE_EQ(result.rows[0].balance_none, 1.0);
  EXPECT_DOUBLE_EQ(result.rows[0].step_saved_ratio, 0.0);
  EXPECT_LE(result.rows[1].step_saved_ratio, 0.0);
  EXPECT_EQ(result.best_row, 0);
  EXPECT_TRUE(result.rows[1].first_moves_ns == 0 || std::isinf(result.rows[1].break_even_steps));
}

TEST(Advise, SamplesLayers) {
  AdviseOptions options;
  options.redundant_per_rank = {1}, options.layers_max = 1;
  const AdviseResult one = *advise(small_loads(), options);
  EXPECT_EQ(one.layers_scored, 1);
  EXPECT_EQ(one.rows[0].memory_bytes, 8LL * 2 * 44'000'000) << "memory is of all layers of the model";
}

TEST(Advise, RefusesWhatMakesNoSense) {
  const Loads loads = small_loads();
  const auto message = [&](auto change) {
    AdviseOptions options;
    change(options);
    const auto result = advise(loads, options);
    return result ? std::string("accepted") : result.error().message;
  };
  using O = AdviseOptions;
  EXPECT_NE(message([](O& o) { o.ep_sizes = {}; }).find("EP size"), std::string::npos);
  EXPECT_NE(message([](O& o) { o.ep_sizes = {0}; }).find("EP size 0"), std::string::npos);
  EXPECT_NE(message([](O& o) { o.redundant_per_rank = {-1}; }).find("-1"), std::string::npos);
  EXPECT_NE(message([](O& o) { o.redundant_per_rank = {100}; }).find("more than 64 experts"),
            std::string::npos);
  EXPECT_NE(message([](O& o) { o.moe_step_share = 1.5; }).find("1.5"), std::string::npos);
  EXPECT_NE(message([](O& o) { o.moves_stall_share = -1; }).find("-1"), std::string::npos);
  EXPECT_NE(message([](O& o) { o.window_steps = 120; }).find("120 recorded steps"), std::string::npos);
  EXPECT_NE(message([](O& o) { o.period_steps = {0}; }).find("period of 0"), std::string::npos);
}

}  // namespace
}  // namespace trimtab::experts_eval
