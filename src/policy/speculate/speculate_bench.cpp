#include <benchmark/benchmark.h>

#include "policy/speculate/batch_model.h"
#include "policy/speculate/confidence.h"
#include "policy/speculate/group.h"
#include "policy/speculate/study.h"

namespace trimtab::policy {
namespace {

/// `requests` with five drafts each and rates that vary.
testing::Batch full_batch(std::size_t requests, std::uint64_t seed) {
  base::Prng prng(seed);
  testing::Batch batch;
  batch.owned.resize(requests);
  for (auto& owned : batch.owned) {
    for (auto* rates : {&owned.rates, &owned.previous}) {
      float cumulative = 1;
      for (int j = 0; j < 5; ++j)
        rates->push_back(cumulative *= static_cast<float>(0.4 + 0.6 * prng.uniform()));
    }
    batch.views.push_back({5, owned.rates, owned.previous, true, 9, 9, INT32_MAX});
  }
  return batch;
}

StepCurve curve_for(std::int64_t requests) {
  return testing::straight_curve(requests * 6, 12'000'000, 20'000);
}

void speculate_confidence(benchmark::State& state) {
  const auto batch = full_batch(static_cast<std::size_t>(state.range(0)), 1);
  RankVerifier verifier(curve_for(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(verifier.confidence(batch.views, {8'000, 1'000'000}));
}
BENCHMARK(speculate_confidence)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

/// One rank's part of the group's rule.
void speculate_group_rank(benchmark::State& state) {
  const auto batch = full_batch(static_cast<std::size_t>(state.range(0)), 1);
  const StepCurve curve = curve_for(state.range(0));
  GroupVerifier verifier(curve);
  const GroupTimeModel time(curve);
  std::int64_t round = 0;
  for (auto _ : state) {
    const VerifySummary& summary = verifier.summarize(batch.views, 500'000, Nanos{30'000'000});
    const GroupDecision decision = decide_group(curve, {}, summary, time, ++round);
    benchmark::DoNotOptimize(verifier.fill(batch.views, decision));
  }
}
BENCHMARK(speculate_group_rank)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

/// All 64 ranks on one core, merging included: what a simulator pays for a step.
void speculate_group_all_ranks(benchmark::State& state) {
  std::vector<testing::Batch> ranks;
  for (std::uint64_t rank = 0; rank < 64; ++rank)
    ranks.push_back(full_batch(static_cast<std::size_t>(state.range(0)), rank + 1));
  const StepCurve curve = curve_for(state.range(0));
  GroupVerifier verifier(curve);
  const GroupTimeModel time(curve);
  std::int64_t round = 0;
  for (auto _ : state) {
    VerifySummary group;
    for (const auto& batch : ranks) merge(group, verifier.summarize(batch.views, 500'000, Nanos{30'000'000}));
    const GroupDecision decision = decide_group(curve, {}, group, time, ++round);
    for (const auto& batch : ranks) benchmark::DoNotOptimize(verifier.fill(batch.views, decision));
  }
}
BENCHMARK(speculate_group_all_ranks)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

void speculate_share_by_newest(benchmark::State& state) {
  const auto batch = full_batch(static_cast<std::size_t>(state.range(0)), 1);
  std::vector<FreshDraft> fresh;
  for (const auto& owned : batch.owned) fresh.push_back({owned.rates, true});
  for (auto _ : state) benchmark::DoNotOptimize(share_by_newest(fresh, 4 * state.range(0)));
}
BENCHMARK(speculate_share_by_newest)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

void speculate_time_observe(benchmark::State& state) {
  const StepCurve curve = curve_for(64);
  GroupTimeModel time(curve);
  std::size_t graph = 0;
  for (auto _ : state) time.observe(20 + ++graph % 16, 500'000, Nanos{30'000'000});
}
BENCHMARK(speculate_time_observe);

/// Percent over verifying five drafts of everyone (study.h); not a speed.
void speculate_study(benchmark::State& state) {
  study::Model model;
  model.requests_per_rank = state.range(0);
  model.expert_mean_share = static_cast<double>(state.range(1));
  study::Comparison result;
  for (auto _ : state) result = study::run(model);
  state.counters["published"] = 100 * result.published_gain();
  state.counters["ours"] = 100 * result.ours_gain();
  state.counters["bound"] = 100 * result.bound_gain();
  state.counters["published_verified"] = result.published.verified;
  state.counters["ours_verified"] = result.ours.verified;
}
BENCHMARK(speculate_study)
    ->ArgNames({"requests", "experts_on_mean"})
    ->ArgsProduct({{4, 8, 16, 32, 60, 96, 128}, {0, 1}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trimtab::policy
