#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "model/cluster_config.h"
#include "policy/cost/cost_model.h"
#include "policy/prefill/rank_scheduler.h"

namespace trimtab::policy {

/// Whether work of this size is the whole group's instead of one rank's: beyond
/// `prefill.context_parallel_quotas` step budgets. Never when that is 0.
bool context_parallel(const model::PrefillConfig& config, base::Nanos work);

/// Long work that all ranks of a group compute together (context parallelism: each takes a part of the
/// chunk's queries, so attention and the rest are spread evenly).
///
/// Algorithm. Such requests wait in one queue of the group, first come, first served. A step gives them
/// `context_parallel_percent` of its budget while ranks have other work, all of it when they have none; their
/// chunk is the largest whose cost is that part on every rank. Source: long requests set the P99 of long
/// tiers, because one rank takes what its own work takes, however even the ranks are; only spreading one
/// request shortens that. Cost: one solve a step. Weakness: everybody in the group pays for it, so short work
/// that shares the group waits; the ranks must exchange keys or queries (an engine's price, not modelled
/// here); an engine needs the kernels for it (the reference engine has none).
class ContextParallelQueue {
 public:
  ContextParallelQueue(const model::PrefillConfig& config, std::uint32_t ranks, const CostModel& cost);

  /// As RankScheduler's.
  void add(RankRequest request) { scheduler_.add(std::move(request)); }
  bool set_ready(model::RequestId id, base::TokenCount ready) { return scheduler_.set_ready(id, ready); }
  bool remove(model::RequestId id) { return scheduler_.remove(id); }
  std::size_t waiting() const { return scheduler_.waiting(); }

  /// What a step of this budget gives to this queue, on every rank; 0 when nothing waits. The rest is the
  /// ranks' own. `others`: some rank has work of its own.
  base::Nanos part(base::Nanos budget, bool others) const;
  /// Chunks that take `part` on every rank when they are spread evenly.
  StepPlan plan(base::Nanos part) const;
  std::vector<model::RequestId> done(const StepPlan& plan) {
    return scheduler_.done(plan, plan.predicted_whole);
  }

 private:
  std::uint32_t ranks_;
  std::int64_t percent_;
  RankScheduler scheduler_;  // of a rank that is as fast as the whole group
};

}  // namespace trimtab::policy
