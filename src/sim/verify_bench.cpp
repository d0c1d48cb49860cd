#include <benchmark/benchmark.h>

#include "sim/verify_study.h"

namespace trimtab::sim {
namespace {

/// Percent over verifying five drafts of everyone, in the loop; not a speed.
void verify_in_the_loop(benchmark::State& state) {
  study::Load load;
  load.requests_per_rank = state.range(0);
  const auto speed = state.range(1) != 0 ? SimulationSpeed::kExact : SimulationSpeed::kFast;
  study::Outcome outcomes[3];
  for (auto _ : state) {
    int at = 0;
    for (const auto policy :
         {model::VerifyPolicy::kFixed, model::VerifyPolicy::kPublished, model::VerifyPolicy::kGroup}) {
      const model::Scenario scenario = study::scenario_of(policy, speed);
      outcomes[at++] = study::World(scenario, load).run();
    }
  }
  state.counters["published_%"] = 100 * (outcomes[1].tokens_per_s / outcomes[0].tokens_per_s - 1);
  state.counters["ours_%"] = 100 * (outcomes[2].tokens_per_s / outcomes[0].tokens_per_s - 1);
  state.counters["accepted_fixed"] = outcomes[0].accepted_length;
  state.counters["accepted_ours"] = outcomes[2].accepted_length;
  state.counters["step_ms_fixed"] = outcomes[0].step_ms;
}
BENCHMARK(verify_in_the_loop)
    ->ArgNames({"requests", "exact"})
    ->ArgsProduct({{16, 60, 96}, {0, 1}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::sim
