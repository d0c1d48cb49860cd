#include <benchmark/benchmark.h>

#include "policy/overlap/overlap.h"

namespace trimtab::policy {
namespace {

void overlap_worth(benchmark::State& state) {
  OverlapModel model;
  std::int64_t batch = 1;
  for (auto _ : state) {
    benchmark::DoNotOptimize(model);
    benchmark::DoNotOptimize(worth(model, batch));
    batch = batch % 512 + 1;
  }
}
BENCHMARK(overlap_worth);

}  // namespace
}  // namespace trimtab::policy
