#include <benchmark/benchmark.h>

#include <algorithm>

#include "base/prng.h"
#include "policy/experts/moves/batches.h"
#include "policy/experts/moves/move_plan.h"
#include "policy/experts/statistics.h"

namespace trimtab::experts {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Shape shape_of(const benchmark::State& state) {
  const auto ranks = static_cast<std::int32_t>(state.range(0)),
             redundant = static_cast<std::int32_t>(state.range(1));
  return {.experts = 384, .slots = 384 + redundant, .ranks = ranks, .nodes = 1, .groups = 1};
}

MoveOptions options(std::int64_t staging = 1) {
  MoveOptions out;
  out.staging_slots = static_cast<std::int32_t>(staging);
  out.budget = {.bytes_per_copy = 18'800'000,
                .link_bytes_per_s = 50'000'000'000,
                .node_link_bytes_per_s = 0,
                .local_bytes_per_s = 2'000'000'000'000,
                .stall_ns = 2'000'000};
  return out;
}

/// `changes` pairs of slots exchanged; -1: all slots anew, as planners do that ignore the current map.
SlotMap changed(const SlotMap& before, std::int64_t changes, base::Prng& prng) {
  SlotMap after = before;
  if (changes < 0) prng.shuffle(std::span(after));
  for (std::int64_t i = 0; i < changes; ++i)
    std::swap(after[at(static_cast<std::int64_t>(prng.below(after.size())))],
              after[at(static_cast<std::int64_t>(prng.below(after.size())))]);
  return after;
}

void plan_moves_of_a_layer(benchmark::State& state) {
  const Shape shape = shape_of(state);
  base::Prng prng(1);
  const SlotMap before = initial_map(shape), after = changed(before, state.range(2), prng);
  std::int64_t received = 0, batches = 0;
  for (auto _ : state) {
    const auto plan = plan_moves({shape, shape, before, after, {}, {}, options(state.range(3))});
    received = plan->received();
    batches = static_cast<std::int64_t>(plan->batches.size());
  }
  state.counters["received"] = static_cast<double>(received);
  state.counters["batches"] = static_cast<double>(batches);
}
BENCHMARK(plan_moves_of_a_layer)
    ->ArgNames({"ranks", "redundant", "changes", "staging"})
    ->Args({8, 32, 1, 1})
    ->Args({64, 64, 2, 1})
    ->ArgsProduct({{4}, {16}, {-1}, {1, 4}})
    ->ArgsProduct({{8}, {32}, {-1}, {1, 4}})
    ->ArgsProduct({{64}, {64}, {-1}, {1, 4}});

void fold_one_step(benchmark::State& state) {
  StatisticsConfig config;
  config.shape = shape_of(state);
  config.layers = 40;
  config.window_steps = 100;
  std::vector<std::int32_t> maps;
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const SlotMap map = initial_map(config.shape);
    maps.insert(maps.end(), map.begin(), map.end());
  }
  auto statistics = Statistics::make(config, maps);
  const std::vector<std::int32_t> counts(at(config.layers) * at(config.shape.slots_per_rank()), 24);
  for (auto _ : state) {
    for (std::int32_t rank = 0; rank < config.shape.ranks; ++rank)
      benchmark::DoNotOptimize(statistics->add(rank, counts));
    statistics->end_step();
  }
  state.SetItemsProcessed(state.iterations() * config.layers * config.shape.slots);
}
BENCHMARK(fold_one_step)->ArgNames({"ranks", "redundant"})->Args({8, 32})->Args({64, 64});

void schedule_40_layers(benchmark::State& state) {
  const Shape shape = shape_of(state);
  base::Prng prng(1);
  std::vector<MovePlan> plans;
  const SlotMap before = initial_map(shape);
  for (int layer = 0; layer < 40; ++layer)
    plans.push_back(
        *plan_moves({shape, shape, before, changed(before, state.range(2), prng), {}, {}, options()}));
  std::int64_t rounds = 0;
  for (auto _ : state)
    rounds = static_cast<std::int64_t>(schedule_layers(plans, options().budget)->rounds.size());
  state.counters["rounds"] = static_cast<double>(rounds);
}
BENCHMARK(schedule_40_layers)
    ->ArgNames({"ranks", "redundant", "changes"})
    ->Args({8, 32, 1})
    ->Args({64, 64, 2});

}  // namespace
}  // namespace trimtab::experts
