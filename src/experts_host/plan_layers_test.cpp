#include "experts_host/plan_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/prng.h"

namespace trimtab::experts_host {
namespace {

using experts::Shape;
using testing::HasSubstr;

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
constexpr Shape kShape{.experts = 48, .slots = 64, .ranks = 8, .nodes = 1, .groups = 1};

std::vector<double> loads_of(std::int32_t steps, std::int32_t layers) {
  base::Prng prng(11);
  std::vector<double> out(at(steps) * at(layers) * at(kShape.experts));
  for (double& load : out) load = static_cast<double>(prng.below(400));
  return out;
}

TEST(EachLayer, VisitsEveryLayerOnceAtAnyNumberOfThreads) {
  for (const std::int32_t threads : {0, 1, 2, 7, 64}) {
    std::vector<std::atomic<int>> visits(20);
    each_layer(20, threads, [&](std::int32_t layer) { ++visits[at(layer)]; });
    for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
  }
  each_layer(0, 4, [](std::int32_t) { FAIL(); });
}

TEST(PlanLayers, AreThePlansOfEachLayerAtAnyNumberOfThreads) {
  constexpr std::int32_t kSteps = 9, kLayers = 6;
  const std::vector<double> loads = loads_of(kSteps, kLayers);
  const auto one = plan_layers(kShape, loads.data(), kSteps, kLayers, {}, {}, 1);
  ASSERT_TRUE(one.has_value());
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const auto window = experts::LoadWindow::make(loads.data() + layer * kShape.experts, kSteps,
                                                  kShape.experts, std::ptrdiff_t{kLayers} * kShape.experts);
    EXPECT_EQ(experts::plan_layer(kShape, *window, {}, {})->map, (*one)[at(layer)].map);
  }
  for (const std::int32_t threads : {2, 4, 0}) {
    const auto many = plan_layers(kShape, loads.data(), kSteps, kLayers, maps_of(*one), {}, threads);
    const auto few = plan_layers(kShape, loads.data(), kSteps, kLayers, maps_of(*one), {}, 1);
    EXPECT_EQ(maps_of(*many), maps_of(*few));
  }
}

TEST(PlanLayers, LowestLayerAtFaultIsNamed) {
  constexpr std::int32_t kSteps = 3, kLayers = 8;
  std::vector<double> loads = loads_of(kSteps, kLayers);
  loads[at(6) * 48 + 5] = -2;
  loads[at(3) * 48 + 7] = std::nan("");
  for (const std::int32_t threads : {1, 4}) {
    const auto plans = plan_layers(kShape, loads.data(), kSteps, kLayers, {}, {}, threads);
    ASSERT_FALSE(plans.has_value());
    EXPECT_THAT(plans.error().message, HasSubstr("layer 3: the load of expert 7 in step 0 is nan"));
  }
}

TEST(PlanLayers, FaultsNameTheValueAndTheFix) {
  const std::vector<double> loads = loads_of(3, 2);
  const auto message = [&](std::int32_t layers, std::size_t current, std::int32_t threads) {
    const std::vector<std::int32_t> maps(current);
    const auto plans = plan_layers(kShape, loads.data(), 3, layers, maps, {}, threads);
    return plans ? std::string() : plans.error().message;
  };
  EXPECT_THAT(message(0, 0, 1), HasSubstr("0 layers"));
  EXPECT_THAT(message(2, 0, -1), HasSubstr("-1 threads: use 0"));
  EXPECT_THAT(message(2, 63, 1), HasSubstr("63 slots in all, which 2 layers do not divide: pass [2, 64]"));
}

}  // namespace
}  // namespace trimtab::experts_host
