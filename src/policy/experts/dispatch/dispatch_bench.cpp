#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "policy/experts/dispatch/made_layers.h"
#include "policy/experts/dispatch/share_table.h"
#include "policy/experts/dispatch/shares.h"

namespace trimtab::experts {
namespace {

// Ranks and redundant slots of 384 experts, top-6, 256 tokens a rank and step.
Shape shape_of(const benchmark::State& state) {
  const auto ranks = static_cast<std::int32_t>(state.range(0));
  return {.experts = 384, .slots = 384 + static_cast<std::int32_t>(state.range(1)), .ranks = ranks};
}

struct Case {
  SlotMap map;
  std::vector<std::vector<std::int64_t>> steps;
};

// Maps planned for rates that the steps then differ from by sigma 0.4, as after some drift.
std::vector<Case> cases(const Shape& shape, std::int32_t layers, std::int32_t steps) {
  std::vector<Case> out;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    base::Prng prng(7, static_cast<std::uint64_t>(layer));
    std::vector<double> rates = made::popularity(prng, shape.experts, 0.8, shape.ranks * 256.0 * 6);
    Case made_case{.map = made::greedy_map(shape, rates), .steps = {}};
    for (double& rate : rates) rate *= std::exp(0.4 * prng.normal() - 0.08);
    for (std::int32_t step = 0; step < steps; ++step) {
      made_case.steps.push_back(made::counts(prng, rates));
    }
    out.push_back(std::move(made_case));
  }
  return out;
}

// Of this thread: a busy machine's other work is not in the figures (the clock's call, some 0.2 us, is).
double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Mean and percentiles of single calls, each timed by itself.
class Samples {
 public:
  template <class F>
  void time(F&& call) {
    const double start = thread_us();
    call();
    us_.push_back(thread_us() - start);
  }
  void report(benchmark::State& state) {
    std::ranges::sort(us_);
    double sum = 0;
    for (const double us : us_) sum += us;
    state.counters["us_mean"] = sum / static_cast<double>(us_.size());
    state.counters["us_p50"] = us_[us_.size() / 2];
    state.counters["us_p99"] = us_[us_.size() * 99 / 100];
  }

 private:
  std::vector<double> us_;
};

void shares(benchmark::State& state) {
  const Shape shape = shape_of(state);
  const std::vector<Case> layers = cases(shape, 4, 64);
  const ShareOptions options{.sweeps_before = static_cast<std::int32_t>(state.range(2)),
                             .sweeps_after = static_cast<std::int32_t>(state.range(3))};
  std::vector<ShareSolver> solvers;
  std::vector<ShareTable> tables;
  for (const Case& layer : layers) {
    solvers.push_back(*ShareSolver::make(shape, layer.map, options));
    tables.push_back(*ShareTable::make(shape, layer.map));
  }
  Samples samples;
  std::size_t step = 0;
  double pushes = 0, ratio = 0, solved = 0;
  for (auto unused : state) {
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      samples.time([&] {
        benchmark::DoNotOptimize(
            solvers[layer].solve(std::span<const std::int64_t>(layers[layer].steps[step])));
        tables[layer].set(solvers[layer]);
      });
      const ShareFlow& flow = solvers[layer].flow();
      pushes += static_cast<double>(flow.pushes());
      ratio += static_cast<double>(flow.peak()) * shape.ranks / static_cast<double>(flow.total());
      ++solved;
    }
    step = (step + 1) % layers[0].steps.size();
  }
  samples.report(state);
  state.counters["pushes"] = pushes / solved;
  state.counters["peak/mean"] = ratio / solved;
}
BENCHMARK(shares)
    ->ArgNames({"ranks", "redundant", "before", "after"})
    ->ArgsProduct({{4}, {16}, {1}, {0}})
    ->ArgsProduct({{8}, {8, 32}, {0, 1, 2}, {0}})
    ->ArgsProduct({{64}, {64}, {0, 1, 2}, {0}})
    ->Args({8, 32, 1, 1})
    ->Args({64, 64, 1, 1})
    ->Args({64, 64, 2, 2});

}  // namespace
}  // namespace trimtab::experts
