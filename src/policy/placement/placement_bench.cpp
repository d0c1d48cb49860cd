#include <benchmark/benchmark.h>

#include "policy/placement/rebuild.h"
#include "policy/placement/resize.h"

namespace trimtab::placement {
namespace {

/// Goal: under a second for any number of nodes.
void make(benchmark::State& state) {
  const auto nodes = static_cast<std::uint32_t>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(make_map(nodes));
  const auto map = make_map(nodes);
  const NodeId dead = 0;
  state.counters["reads_max_over_mean"] = plan_rebuild(*map, std::span(&dead, 1))->read_imbalance;
  state.SetLabel(map->how);
}
BENCHMARK(make)->Arg(25)->Arg(64)->Arg(133)->Arg(200)->Arg(512)->Unit(benchmark::kMillisecond);

void rebuild(benchmark::State& state) {
  const auto map = make_map(static_cast<std::uint32_t>(state.range(0)));
  const NodeId dead = 3;
  for (auto _ : state) benchmark::DoNotOptimize(plan_rebuild(*map, std::span(&dead, 1)));
}
BENCHMARK(rebuild)->Arg(64)->Arg(200)->Arg(512)->Unit(benchmark::kMillisecond);

void grow(benchmark::State& state) {
  const auto map = make_map(static_cast<std::uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(expand(*map, 4));
}
BENCHMARK(grow)->Arg(64)->Arg(200)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::placement
