#include <benchmark/benchmark.h>

#include <array>

#include "base/check.h"
#include "base/prng.h"
#include "config/profile.h"
#include "policy/cost/cost_model.h"
#include "policy/cost/drift.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;

/// A budget, and a request in the middle of its prompt.
struct Case {
  Nanos budget;
  TokenCount computed, prompt;
};

/// Requests that the budget cuts, so that nothing ends early at the end of the prompt.
std::array<Case, 1024> cases(const CostModel& model) {
  base::Prng prng(7);
  std::array<Case, 1024> all;
  for (Case& each : all) {
    each.computed = TokenCount{static_cast<std::int64_t>(prng.below(400'000))};
    each.prompt = each.computed + TokenCount{static_cast<std::int64_t>(20'000 + prng.below(80'000))};
    const auto cut = TokenCount{static_cast<std::int64_t>(1 + prng.below(18'000))};
    each.budget = model.cost(cut, each.computed, each.prompt);
  }
  return all;
}

CostModel shipped(const char* name) {
  const auto profile = config::load_profile(name, "profiles");
  TRIMTAB_CHECK(profile.has_value(), "run the bench in the repository's root");
  return CostModel(*profile);
}

void solve(benchmark::State& state, const char* profile) {
  const CostModel model = shipped(profile);
  const auto all = cases(model);
  std::size_t i = 0;
  for (auto _ : state) {
    const Case& each = all[i++ & 1023];
    benchmark::DoNotOptimize(model.solve(each.budget, each.computed, each.prompt, {}));
  }
}

void cost(benchmark::State& state, const char* profile) {
  const CostModel model = shipped(profile);
  const auto all = cases(model);
  std::size_t i = 0;
  for (auto _ : state) {
    const Case& each = all[i++ & 1023];
    benchmark::DoNotOptimize(model.request(each.computed, each.prompt));
  }
}

void drift(benchmark::State& state) {
  DriftMonitor monitor;
  std::int64_t i = 0;
  for (auto _ : state) monitor.observe(Nanos{1'000'000}, Nanos{900'000 + (++i & 0xffff)});
  benchmark::DoNotOptimize(monitor.verdict());
}

BENCHMARK_CAPTURE(solve, quadratic, "quadratic-example")->Name("chunk_solve_quadratic");
BENCHMARK_CAPTURE(solve, v41, "deepseek-v4.1-flash")->Name("chunk_solve_v41");
BENCHMARK_CAPTURE(cost, quadratic, "quadratic-example")->Name("cost_quadratic");
BENCHMARK_CAPTURE(cost, v41, "deepseek-v4.1-flash")->Name("cost_v41");
BENCHMARK(drift)->Name("drift_observe");

}  // namespace
}  // namespace trimtab::policy
