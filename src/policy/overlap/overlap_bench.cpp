#include <benchmark/benchmark.h>

#include "policy/overlap/overlap.h"
#include "policy/overlap/phases.h"

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

void overlap_decode(benchmark::State& state) {
  const OverlapModel model;
  for (auto _ : state) benchmark::DoNotOptimize(decide_decode_overlap(model, state.range(0)));
}
BENCHMARK(overlap_decode)->Arg(32)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

void overlap_prefill(benchmark::State& state) {
  const PrefillModel model;
  const PrefillChunk chunks[] = {{4'000, 9'000}, {700, 64'000}, {5'000, 0}};
  for (auto _ : state) benchmark::DoNotOptimize(decide_prefill_overlap(model, chunks));
}
BENCHMARK(overlap_prefill)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::policy
