#include "policy/swap_in/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace trimtab::policy {
namespace {

SwapBackendCost one_by_one() { return {"copy_engine", 2'500, 0, 0, 50, 1, 0}; }
SwapBackendCost batched() { return {"copy_engine_batch", 4'000, 150, 400, 50, 512, 0}; }
SwapBackendCost gather() { return {"gather", 6'000, 20, 20, 45, 4'096, .12}; }

/// 512 blocks in each of V4.1's owner layers (system facts, section 12), ten layers of computing behind each.
std::vector<SwapLayer> pass(double compute_ns) {
  std::vector<SwapLayer> layers(4, {512, 512 * 22'784, 0, compute_ns});
  layers[3].bytes *= 2;
  return layers;
}

TEST(SwapPlan, CopiesOneByOneAreBoundByTheirSubmitting) {
  const SwapOutcome outcome = play_swap(one_by_one(), 1, pass(0));
  EXPECT_DOUBLE_EQ(outcome.submit_ns, 4 * 512 * 2'500.0);
  EXPECT_GE(outcome.total_ns, outcome.submit_ns) << "the device waits for the thread";
  EXPECT_DOUBLE_EQ(outcome.stalled_ns, outcome.total_ns) << "nothing to compute: all of it is waiting";
}

TEST(SwapPlan, TheChoiceTakesBatchesWhenBlocksAreMany) {
  const std::vector<SwapBackendCost> backends{one_by_one(), batched()};
  const auto choice = choose_swap(backends, pass(2e6));
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->backend, 1U);
  EXPECT_GT(choice->batch, 1U);
  EXPECT_LT(choice->batch, 512U) << "a batch of everything makes the first byte late";
  EXPECT_THAT(choice->reason, ::testing::StartsWith("copy_engine_batch"));
  EXPECT_THAT(choice->reason, ::testing::HasSubstr("next best copy_engine"));
}

TEST(SwapPlan, AGatherThatSlowsComputingLosesWhenThereIsTimeToHideCopies) {
  std::vector<SwapBackendCost> backends{batched(), gather()};
  backends[0].device_copy_ns = 60;  // the first layer, which nothing hides, is there as soon either way
  EXPECT_EQ(choose_swap(backends, pass(5e6))->backend, 0U)
      << "hidden either way, but the kernel costs compute";
  std::vector<SwapBackendCost> small{{"slow_submit", 50'000, 1'000, 400, 50, 8, 0}, gather()};
  EXPECT_EQ(choose_swap(small, pass(1e4))->backend, 1U) << "nothing to hide behind: the fastest copy wins";
}

TEST(SwapPlan, IsHiddenBehindAPassThatIsLonger) {
  const SwapOutcome outcome = play_swap(batched(), 64, pass(5e6));
  const double first_layer = 512 * (400 + 22'784 / 50.0) + 4'000 + 64 * 150;
  EXPECT_NEAR(outcome.stalled_ns, first_layer, .3 * first_layer) << "only the first layer is waited for";
  EXPECT_DOUBLE_EQ(outcome.total_ns, outcome.stalled_ns + 4 * 5e6);
}

TEST(SwapPlan, WhatIsNotReadyIsWaitedFor) {
  auto layers = pass(1e6);
  layers[2].ready_ns = 50e6;
  const SwapOutcome outcome = play_swap(batched(), 64, layers);
  EXPECT_GT(outcome.total_ns, 52e6);
  EXPECT_LT(outcome.total_ns, 54e6);
}

TEST(SwapPlan, LayersWithoutBlocksCostNothing) {
  const std::vector<SwapLayer> layers(3, {0, 0, 0, 1'000});
  const SwapOutcome outcome = play_swap(batched(), 8, layers);
  EXPECT_DOUBLE_EQ(outcome.total_ns, 3'000);
  EXPECT_DOUBLE_EQ(outcome.stalled_ns, 0);
  EXPECT_DOUBLE_EQ(outcome.overlap(), 1);
}

TEST(SwapPlan, TheFitFindsTheCostsBehindItsSamples) {
  std::vector<SwapSample> samples;
  for (const auto& [calls, copies, bytes] :
       std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>{
           {8, 1, 4'096}, {8, 64, 4'096}, {8, 64, 22'784}, {2, 512, 45'568}, {64, 8, 114'048}}) {
    SwapSample sample{calls, copies, bytes, 0, 0};
    sample.submit_ns = calls * (4'000.0 + copies * 150.0);
    sample.total_ns = sample.submit_ns / calls + calls * copies * (900.0 + static_cast<double>(bytes) / 50);
    samples.push_back(sample);
  }
  const auto cost = fit_swap_cost("measured", samples, 512, .1);
  ASSERT_TRUE(cost.has_value());
  EXPECT_NEAR(cost->call_ns, 4'000, 1);
  EXPECT_NEAR(cost->submit_copy_ns, 150, .1);
  EXPECT_NEAR(cost->device_copy_ns, 900, 1);
  EXPECT_NEAR(cost->bytes_per_ns, 50, .1);
  const std::vector<SwapSample> one_shape(5, samples[0]);
  EXPECT_FALSE(fit_swap_cost("measured", one_shape, 512, 0).has_value());
}

TEST(SwapPlan, NamesWhatIsWrong) {
  EXPECT_FALSE(choose_swap({}, pass(1)).has_value());
  std::vector<SwapBackendCost> backends{batched()};
  backends[0].device_copy_ns = -3;
  const auto choice = choose_swap(backends, pass(1));
  ASSERT_FALSE(choice.has_value());
  EXPECT_THAT(choice.error().message, ::testing::HasSubstr("'copy_engine_batch': device_copy_ns is -3"));
}

RC_GTEST_PROP(SwapPlan, NoChoiceBeatsIt, ()) {
  const auto cost = [](std::string name) {
    SwapBackendCost c;
    c.name = std::move(name);
    c.call_ns = *rc::gen::inRange(0, 9'000);
    c.submit_copy_ns = *rc::gen::inRange(0, 900);
    c.device_copy_ns = *rc::gen::inRange(0, 900);
    c.bytes_per_ns = *rc::gen::inRange(1, 90);
    c.batch_max = 1U << *rc::gen::inRange(0, 7);
    c.compute_share = *rc::gen::inRange(0, 30) / 100.0;
    return c;
  };
  const std::vector<SwapBackendCost> backends{cost("a"), cost("b"), cost("c")};
  std::vector<SwapLayer> layers;
  for (int i = *rc::gen::inRange(1, 6); i > 0; --i)
    layers.push_back({*rc::gen::inRange<std::uint32_t>(0, 200),
                      *rc::gen::inRange<std::uint64_t>(0, 9'000'000),
                      static_cast<double>(*rc::gen::inRange(0, 900'000)),
                      static_cast<double>(*rc::gen::inRange(0, 900'000))});
  const auto choice = choose_swap(backends, layers);
  RC_ASSERT(choice.has_value());
  double computing = 0;
  for (const SwapLayer& layer : layers) computing += layer.compute_ns;
  RC_ASSERT(choice->outcome.total_ns >= computing - 1e-6);
  for (const SwapBackendCost& backend : backends)
    for (std::uint32_t batch = 1; batch <= backend.batch_max; batch *= 2) {
      const SwapOutcome outcome = play_swap(backend, batch, layers);
      RC_ASSERT(choice->outcome.total_ns <= outcome.total_ns);
      RC_ASSERT(std::abs(outcome.total_ns - computing - outcome.stalled_ns - outcome.slowed_ns) <
                1e-6 * (1 + outcome.total_ns));
    }
}

}  // namespace
}  // namespace trimtab::policy
