#include "agents/serving_metrics.h"

#include <gtest/gtest.h>

namespace trimtab::agents {
namespace {

using base::Nanos;

class CostAlarm : public ::testing::Test {
 protected:
  void steps(std::uint32_t engine, int count, std::int64_t predicted_us, std::int64_t actual_us) {
    cluster::PrefillStepped step;
    step.from = {model::EngineId{engine}, 0};
    step.predicted = Nanos{predicted_us * 1'000};
    step.actual = Nanos{actual_us * 1'000};
    for (int i = 0; i < count; ++i) metrics.on_prefill_step(step);
  }
  double of(const char* name, std::uint32_t engine) const {
    return registry.value(name, {{"engine", std::to_string(engine)}});
  }
  obs::Registry registry;
  ServingMetrics metrics{registry};
};

// Predicted against actual step cost: more than 10 % off over 100 steps is told, once each time that it
// begins.
TEST_F(CostAlarm, TenPercentOverAHundredStepsOfOneEngine) {
  steps(0, 99, 80, 100);
  EXPECT_EQ(of("trimtab_prefill_cost_alarms_total", 0), 0) << "a few slow first steps are no drift";
  EXPECT_NEAR(of("trimtab_prefill_cost_error_ratio", 0), 0.2, 1e-6);
  steps(0, 1, 80, 100);
  EXPECT_EQ(of("trimtab_prefill_cost_alarms_total", 0), 1);
  EXPECT_TRUE(metrics.drift().at(model::EngineId{0}).alarmed);
  steps(0, 50, 80, 100);
  EXPECT_EQ(of("trimtab_prefill_cost_alarms_total", 0), 1) << "the same alarm goes on";
  steps(1, 200, 95, 100);
  EXPECT_EQ(of("trimtab_prefill_cost_alarms_total", 1), 0) << "5 % off, and another engine";
  EXPECT_NEAR(of("trimtab_prefill_cost_bias_ratio", 1), 0.05, 1e-6);
  steps(0, 100, 100, 100);
  EXPECT_FALSE(metrics.drift().at(model::EngineId{0}).alarmed);
  steps(0, 100, 130, 100);
  EXPECT_EQ(of("trimtab_prefill_cost_alarms_total", 0), 2);
  EXPECT_NEAR(of("trimtab_prefill_cost_bias_ratio", 0), -0.3, 1e-6) << "steps are shorter than predicted";
}

TEST(WindowHits, AreCountedByWhatTheyBeganFrom) {
  obs::Registry registry;
  ServingMetrics metrics(registry);
  model::KvLayout layout;
  layout.window_tokens = 128;
  layout.window_layers = 20;
  const auto served = [&](std::vector<std::uint32_t> states, std::int64_t matched, kv::WindowMode mode) {
    kv::HitQuery query;
    query.prompt_tokens = 6'000;
    query.matched_blocks = matched;
    query.snapshots = states;
    query.mode = mode;
    metrics.on_window(kv::decide_hit(query, layout));
  };
  served({40}, 40, kv::WindowMode::kApproximate);
  served({40}, 41, kv::WindowMode::kExact);  // from an older one, and a block again
  served({}, 40, kv::WindowMode::kApproximate);
  served({}, 40, kv::WindowMode::kExact);
  served({}, 0, kv::WindowMode::kApproximate);  // no hit, so nothing to begin from
  const auto began = [&](const char* from) {
    return registry.value("trimtab_window_state_requests_total", {{"begin", from}});
  };
  EXPECT_EQ(began("state"), 2);
  EXPECT_EQ(began("approximate"), 1);
  EXPECT_EQ(began("exact"), 1);
  EXPECT_EQ(registry.value("trimtab_window_tokens_recomputed_total"), 128 + 128 + 128 * 20);
}

}  // namespace
}  // namespace trimtab::agents
