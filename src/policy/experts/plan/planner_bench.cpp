// Microseconds a layer on one thread: planner/ranks/steps/effort (0 fast, 1 default, 2 quality), and
// incremental/ranks/steps from the plan five steps before.
#include <benchmark/benchmark.h>

#include <cmath>

#include "base/prng.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts {
namespace {

constexpr std::int32_t kExperts = 384;

Shape shape_of(std::int64_t ranks) {
  const auto wide = static_cast<std::int32_t>(ranks);
  return {kExperts, kExperts + (wide == 4 ? 16 : wide == 8 ? 32 : 64), wide};
}

/// Skewed rates, counts about them; `first` shifts the window.
LoadWindow window_of(std::int64_t ranks, std::int64_t steps, std::int64_t first) {
  base::Prng rates(3), noise(4);
  std::vector<double> rate(kExperts);
  for (double& r : rate) {
    const double skew = rates.uniform();
    r = 4.0 * static_cast<double>(ranks) * (0.3 + 3 * skew * skew * skew * skew + skew);
  }
  std::vector<float> loads;
  for (std::int64_t step = 0; step < first + steps; ++step) {
    for (double& r : rate) {
      r *= 1 + 0.02 * noise.normal();
      const double count = r + std::sqrt(r) * noise.normal();
      if (step >= first) loads.push_back(count > 0 ? static_cast<float>(static_cast<int>(count)) : 0.0F);
    }
  }
  return LoadWindow::make(loads.data(), static_cast<std::int32_t>(steps), kExperts, kExperts).value();
}

void planner(benchmark::State& state) {
  const Shape shape = shape_of(state.range(0));
  const LoadWindow window = window_of(state.range(0), state.range(1), 0);
  PlanOptions options;
  options.effort = static_cast<Effort>(state.range(2));
  for (auto _ : state) benchmark::DoNotOptimize(plan_layer(shape, window, {}, options));
  state.counters["balance"] = plan_layer(shape, window, {}, options)->reason.balance;
}
BENCHMARK(planner)->ArgsProduct({{4, 8, 64}, {40, 100, 1000}, {0, 1, 2}})->Unit(benchmark::kMicrosecond);

void incremental(benchmark::State& state) {
  const Shape shape = shape_of(state.range(0));
  const LoadWindow before = window_of(state.range(0), state.range(1), 0);
  const LoadWindow window = window_of(state.range(0), state.range(1), 5);
  PlanOptions options;
  options.start = Start::kIncremental;
  // Two plans ahead, so that the one that is timed starts from an incremental plan, as in service.
  const SlotMap fresh = plan_layer(shape, before, {}, {})->map;
  const SlotMap current = plan_layer(shape, before, fresh, options)->map;
  for (auto _ : state) benchmark::DoNotOptimize(plan_layer(shape, window, current, options));
  state.counters["received"] =
      static_cast<double>(plan_layer(shape, window, current, options)->reason.received);
}
BENCHMARK(incremental)->ArgsProduct({{4, 8, 64}, {40, 100, 1000}})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::experts
