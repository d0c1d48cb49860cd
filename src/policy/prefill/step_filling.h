#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "policy/prefill/rank_scheduler.h"

namespace trimtab::policy {

/// One rank's step under two budgets, filled piece by piece; the rank's scheduler must not change meanwhile.
///
/// Heavy requests (with more attention to the rest than the budgets have) and light ones take turns, slice by
/// slice, so that both budgets run out together; first come, first served in either line. Cost: some 40
/// chunks are solved for a full step.
class StepFilling {
 public:
  /// `budget`: of the whole step, without its fixed part.
  StepFilling(const RankScheduler& rank, const TwoBudgets& budget);

  /// Takes chunks that fit `left`, and takes them off it. `spread`: those that peers may help with, too; no
  /// more of these can be taken once `level` has gone on behind them.
  void fill(TwoBudgets& left, bool spread);
  /// When nothing fitted: the least that an otherwise empty step takes of the first that is ready.
  void take_minimum(TwoBudgets& left);

  base::TokenCount taken(std::size_t i) const { return taken_[i]; }
  bool empty() const;
  StepPlan plan(base::Nanos total) const;

 private:
  bool take(std::size_t i, bool heavy, TwoBudgets& left);
  void count(std::size_t i, base::TokenCount tokens, ChunkReason reason, TwoBudgets& left);
  ChunkLimits limits(std::size_t i) const;

  const RankScheduler& rank_;
  TwoBudgets budget_;
  base::TokenCount tokens_left_;
  std::array<std::vector<std::size_t>, 2> lines_;  // heavy, light
  std::vector<base::TokenCount> taken_;
  std::vector<ChunkReason> reasons_;
};

}  // namespace trimtab::policy
