#include <benchmark/benchmark.h>

#include <array>
#include <string>

#include "sim/expert_study.h"

namespace trimtab::sim {
namespace {

/// The talk's ablation in the loop: percent of tokens per second over no balancing; not a speed.
void eplb_ablation(benchmark::State& state) {
  study::AblationOptions options;
  options.first_seed = state.range(0) != 0 ? study::kReportSeeds : study::kSearchSeeds;
  study::Ablation result;
  for (auto _ : state) result = study::ablate(options);
  for (std::size_t i = 0; i < study::kAblationRows.size(); ++i) {
    const std::string name = study::kAblationRows[i].name;
    state.counters[name + "_%"] = study::Ablation::mean(result.gain_percent[i]);
    state.counters[name + "_error"] = study::Ablation::error(result.gain_percent[i]);
    state.counters[name + "_balance"] = result.balance[i];
  }
  const std::vector<double> copies = result.difference(3, 2);
  state.counters["both_over_replacement_%"] = study::Ablation::mean(copies);
  state.counters["both_over_replacement_error"] = study::Ablation::error(copies);
  state.counters["copies_read_%"] = result.copies_percent;
  state.counters["step_ms"] = result.step_ms;
}
BENCHMARK(eplb_ablation)
    ->ArgName("fresh_seeds")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

/// What a simulated step's experts cost, 64 ranks, four layers.
void expert_step(benchmark::State& state) {
  model::Scenario scenario = study::expert_scenario(model::ExpertPolicy::kRepair, 1, 20'000, 1);
  scenario.cluster.decode.ranks = 64;
  scenario.speed = state.range(0) != 0 ? SimulationSpeed::kExact : SimulationSpeed::kFast;
  if (!prepare_experts(scenario)) return state.SkipWithError("scenario");
  ExpertGroup group(scenario, scenario.experts.decode, 64, 7);
  for (auto _ : state) {
    if (scenario.speed == SimulationSpeed::kExact) {
      benchmark::DoNotOptimize(group.step(64 * 64));
    } else {
      benchmark::DoNotOptimize(group.expected(64 * 64));
      group.advance(1, 64 * 64);
    }
  }
}
BENCHMARK(expert_step)->ArgName("exact")->Arg(1)->Arg(0)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::sim
