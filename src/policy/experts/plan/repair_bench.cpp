#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "policy/experts/dispatch/estimator.h"
#include "policy/experts/dispatch/made_layers.h"
#include "policy/experts/plan/repair.h"

namespace trimtab::experts {
namespace {

// Of this thread: a busy machine's other work is not in the percentiles (the clock's call, some 0.2 us, is).
double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// A layer whose popularity wanders (a random walk of the logarithms) while a repairer keeps its map, step by
// step, from an adaptive estimate.
struct Wandering {
  Shape shape;
  base::Prng prng;
  std::vector<double> logs;
  SlotMap map;
  LoadEstimator estimator;

  Wandering(const Shape& of, std::uint64_t seed)
      : shape(of), prng(seed), logs(static_cast<std::size_t>(of.experts)), estimator(of.experts, {}) {
    for (double& log : logs) log = 0.8 * prng.normal();
    map = made::greedy_map(shape, rates());
    for (int i = 0; i < 8; ++i) step();
  }
  std::vector<double> rates() const {
    std::vector<double> out;
    double sum = 0;
    for (const double log : logs) sum += std::exp(log);
    for (const double log : logs) out.push_back(std::exp(log) * shape.ranks * 1536 / sum);
    return out;
  }
  void step() {
    for (double& log : logs) log += -0.002 * log + 0.025 * prng.normal();
    if (prng.below(50) == 0) {
      for (int i = 0; i < 8; ++i) logs[prng.below(logs.size())] += 1.0;
    }
    estimator.observe(made::counts(prng, rates()));
  }
};

// Arguments: ranks, redundant slots. Counters: us_* of single calls.
void repair(benchmark::State& state) {
  const auto ranks = static_cast<std::int32_t>(state.range(0));
  const Shape shape{.experts = 384, .slots = 384 + static_cast<std::int32_t>(state.range(1)), .ranks = ranks};
  Wandering layer(shape, 1);
  Repairer repairer;
  std::vector<double> us;
  double received = 0, trials = 0, value = 0;
  for (auto unused : state) {
    state.PauseTiming();
    layer.step();
    state.ResumeTiming();
    const double start = thread_us();
    auto done = repairer.repair(shape, layer.estimator.estimate(), layer.map);
    us.push_back(thread_us() - start);
    received += static_cast<double>(done->received);
    trials += static_cast<double>(done->trials);
    value += done->value;
    layer.map = std::move(done->map);
  }
  const auto calls = static_cast<double>(us.size());
  std::ranges::sort(us);
  double sum = 0;
  for (const double one : us) sum += one;
  state.counters["us_mean"] = sum / calls;
  state.counters["us_p50"] = us[us.size() / 2];
  state.counters["us_p99"] = us[us.size() * 99 / 100];
  state.counters["moves"] = received / calls;
  state.counters["trials"] = trials / calls;
  state.counters["value"] = value / calls;
}
BENCHMARK(repair)
    ->ArgNames({"ranks", "redundant"})
    ->Args({4, 16})
    ->Args({8, 32})
    ->Args({64, 64})
    ->Iterations(2000);

}  // namespace
}  // namespace trimtab::experts
