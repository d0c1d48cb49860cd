#include <benchmark/benchmark.h>

#include "policy/swap_in/planner.h"

namespace trimtab::policy {
namespace {

/// A choice for one pass of V4.1 with a 64K-token hit: it is made once per chunk, beside which a forward pass
/// takes tens of milliseconds.
void choose(benchmark::State& state) {
  const std::vector<SwapBackendCost> backends{{"copy_engine", 2'500, 0, 0, 50, 1, 0},
                                              {"copy_engine_batch", 4'000, 150, 400, 50, 512, 0},
                                              {"gather", 6'000, 20, 20, 45, 4'096, .12}};
  const std::vector<SwapLayer> layers(4, {512, 512 * 22'784, 0, 5e6});
  for (auto _ : state) benchmark::DoNotOptimize(choose_swap(backends, layers));
}
BENCHMARK(choose)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::policy
