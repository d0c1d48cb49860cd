#include <benchmark/benchmark.h>

#include "kv/testing/window_model.h"

namespace {

using namespace trimtab::kv::testing;

/// How far the logits of 128 tokens after a hit drift when the window state is missing and `blocks_back`
/// blocks are computed again: 1 is `approximate`, `layers` is `exact`, 0 begins without any state. Random
/// weights, so the figures say how the error falls with depth and blocks, not what a trained model does.
void window_drift(benchmark::State& state) {
  const std::int64_t layers = state.range(0), back = state.range(1);
  DriftMeasure mean;
  constexpr int kSeeds = 3;
  for (auto _ : state) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const WindowStudy study(layers, layers + 2, 128, seed);
      const DriftMeasure drift =
          measure_drift(study.truth(), study.recomputed_from(study.end() - back * 128));
      mean.largest = std::max(mean.largest, drift.largest);
      mean.relative += drift.relative / kSeeds;
      mean.divergence_nats += drift.divergence_nats / kSeeds;
      mean.same_first += drift.same_first / kSeeds;
    }
  }
  state.counters["largest"] = mean.largest;
  state.counters["relative"] = mean.relative;
  state.counters["kl_nats"] = mean.divergence_nats;
  state.counters["same_first"] = mean.same_first;
}
BENCHMARK(window_drift)
    ->ArgNames({"layers", "blocks_back"})
    ->ArgsProduct({{4, 20}, {0, 1, 2, 4}})
    ->Args({20, 10})
    ->Args({20, 20})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
