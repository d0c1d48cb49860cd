#include <benchmark/benchmark.h>

#include <vector>

#include "base/prng.h"
#include "policy/experts/plan/hierarchical.h"
#include "policy/experts/plan/relabel.h"
#include "policy/experts/plan/single_step.h"

namespace trimtab::experts {
namespace {

/// Heavy-tailed totals: a tenth of the experts has most of the load.
std::vector<double> heavy_tailed(std::int32_t experts) {
  base::Prng prng(1);
  std::vector<double> totals(static_cast<std::size_t>(experts));
  for (double& total : totals)
    total = static_cast<double>(1 + prng.below(1 + prng.below(1 + prng.below(20000))));
  return totals;
}

Shape shape_of(const benchmark::State& state) {
  return {static_cast<std::int32_t>(state.range(0)), static_cast<std::int32_t>(state.range(1)),
          static_cast<std::int32_t>(state.range(2)), 1, 1};
}

void plan_one_step(benchmark::State& state) {
  const Shape shape = shape_of(state);
  const std::vector<double> totals = heavy_tailed(shape.experts);
  for (auto _ : state) benchmark::DoNotOptimize(plan_single_step(shape, totals, Effort::kDefault, 1));
}
BENCHMARK(plan_one_step)
    ->Args({384, 400, 4})
    ->Args({384, 416, 8})
    ->Args({256, 288, 32})
    ->Args({384, 448, 64})
    ->Args({256, 320, 320})
    ->Unit(benchmark::kMillisecond);

void plan_one_step_hierarchical(benchmark::State& state) {
  const Shape shape{256, 320, 64, 8, 8};
  const std::vector<double> totals = heavy_tailed(256);
  const auto window = *LoadWindow::make(totals.data(), 1, 256, 256);
  PlanOptions options;
  options.scope = Scope::kHierarchical;
  for (auto _ : state) benchmark::DoNotOptimize(plan_hierarchical(shape, window, {}, options));
}
BENCHMARK(plan_one_step_hierarchical)->Unit(benchmark::kMillisecond);

/// Two unrelated plans of one layer.
void relabel_unrelated(benchmark::State& state) {
  const Shape shape = shape_of(state);
  const std::vector<double> totals = heavy_tailed(shape.experts);
  const SlotMap before = plan_single_step(shape, totals, Effort::kFast, 1);
  const SlotMap after = plan_single_step(shape, totals, Effort::kFast, 2);
  for (auto _ : state) benchmark::DoNotOptimize(relabel(shape, before, after, false));
}
BENCHMARK(relabel_unrelated)
    ->Args({384, 416, 8})
    ->Args({384, 448, 64})
    ->Args({256, 640, 320})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::experts
