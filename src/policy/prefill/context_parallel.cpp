#include "policy/prefill/context_parallel.h"

#include <algorithm>

namespace trimtab::policy {

using base::Nanos;

namespace {

RankConfig as_fast_as(const model::PrefillConfig& config, std::uint32_t ranks) {
  RankConfig rank = RankConfig::from(config);
  rank.step_budget = Nanos{rank.step_budget.value * ranks};
  rank.chunk_tokens_max = base::TokenCount{rank.chunk_tokens_max.value * ranks};
  return rank;
}

}  // namespace

bool context_parallel(const model::PrefillConfig& config, Nanos work) {
  if (config.context_parallel_quotas <= 0) return false;
  return static_cast<__int128>(work.value) >
         static_cast<__int128>(config.step_budget_ms) * 1'000'000 * config.context_parallel_quotas;
}

ContextParallelQueue::ContextParallelQueue(const model::PrefillConfig& config, std::uint32_t ranks,
                                           const CostModel& cost)
    : ranks_(ranks), percent_(config.context_parallel_percent), scheduler_(as_fast_as(config, ranks), cost) {}

Nanos ContextParallelQueue::part(Nanos budget, bool others) const {
  if (waiting() == 0) return Nanos{0};
  return others ? Nanos{budget.value / 100 * percent_} : budget;
}

StepPlan ContextParallelQueue::plan(Nanos part) const {
  // The fixed part is the step's, paid once; the scheduler takes it off its budget.
  const Nanos fixed = scheduler_.cost().fixed();
  return scheduler_.plan(Nanos{std::max(part - fixed, Nanos{0}).value * ranks_} + fixed);
}

}  // namespace trimtab::policy
