#include <benchmark/benchmark.h>

#include "experts_eval/published.h"
#include "experts_eval/synthetic_loads.h"

namespace trimtab::experts_eval {
namespace {

struct Case {
  experts::Shape shape;
  experts::LoadWindow window;
};

/// Ranks, slots, steps: 256 tokens a rank and step.
Case case_of(const benchmark::State& state) {
  SyntheticConfig config;
  config.tokens = static_cast<std::int32_t>(state.range(0)) * 256;
  config.steps = static_cast<std::int32_t>(state.range(2));
  const experts::Shape shape{384, static_cast<std::int32_t>(state.range(1)),
                             static_cast<std::int32_t>(state.range(0)), 1, 1};
  return {shape, *generate(config)->window(0, 0, config.steps)};
}

void deepinfer(benchmark::State& state) {
  const Case one = case_of(state);
  for (auto _ : state) benchmark::DoNotOptimize(deepinfer_plan(one.shape, one.window));
}
BENCHMARK(deepinfer)
    ->Args({4, 400, 100})
    ->Args({8, 416, 100})
    ->Args({64, 448, 100})
    ->Args({8, 416, 1000})
    ->Args({64, 448, 1000})
    ->Unit(benchmark::kMillisecond);

void deepseek(benchmark::State& state) {
  const Case one = case_of(state);
  for (auto _ : state) benchmark::DoNotOptimize(deepseek_global(one.shape, one.window.totals()));
}
BENCHMARK(deepseek)->Args({8, 416, 100})->Args({64, 448, 100})->Unit(benchmark::kMicrosecond);

void synthesize(benchmark::State& state) {
  SyntheticConfig config;
  config.steps = 100, config.layers = 4;
  for (auto _ : state) benchmark::DoNotOptimize(generate(config));
  state.SetItemsProcessed(state.iterations() * config.steps * config.layers * config.experts);
}
BENCHMARK(synthesize)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::experts_eval
