#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "policy/experts/dispatch/share_flow.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

struct ShareOptions {
  /// Rounds of water-filling from even shares before the optimum is sought; with `sweeps_after`, more rounds
  /// behind it, which keep the peak and even out the ranks below it.
  std::int32_t sweeps_before = 1;
  std::int32_t sweeps_after = 1;
  /// False: only the sweeps ("soft" shares).
  bool optimal = true;
};

struct ShareResult {
  double peak_tokens = 0;   // busiest rank under the shares
  double bound_tokens = 0;  // what no shares can beat; equals the peak up to rounding, if optimal
  double mean_tokens = 0;
};

/// Shares of every expert over its copies that minimise the busiest rank of one layer, for the counts of the
/// last step or an estimate of the next.
///
/// Algorithm and proof: ShareFlow. Cost: a few microseconds (docs/policies/experts.md has the table), no
/// allocation after construction. Weakness: optimal for the counts given, so it is as good as they are; the
/// optimum is rarely unique, and ranks below the peak lie where the path search left them.
class ShareSolver {
 public:
  /// Errors: an illegal shape or map. Two copies of an expert on one rank are one copy for the solver: the
  /// later slot gets no share.
  static base::Result<ShareSolver> make(const Shape& shape, std::span<const std::int32_t> map,
                                        const ShareOptions& options = {});

  /// `tokens`: [experts]. Errors name expert and value: wrong length, NaN, infinite, negative.
  base::Result<ShareResult> solve(std::span<const double> tokens);
  base::Result<ShareResult> solve(std::span<const std::int64_t> tokens);
  base::Result<ShareResult> solve(std::span<const std::int32_t> tokens);

  /// Part of its expert's tokens that the slot takes, in [0, 1]; an expert without tokens is split evenly.
  double share(std::int32_t slot) const;
  /// The same for all slots, [slots].
  void shares(std::span<double> out) const;
  /// Ranks whose trapped load equals the peak; empty if all ranks are equal.
  std::span<const std::int32_t> tight_ranks() const { return flow_.tight_ranks(); }
  const ShareFlow& flow() const { return flow_; }
  const Shape& shape() const { return flow_.shape(); }
  std::span<const std::int32_t> map() const { return flow_.map(); }

 private:
  template <class T>
  base::Result<ShareResult> solve_any(std::span<const T> tokens);

  ShareOptions options_;
  ShareFlow flow_;
};

}  // namespace trimtab::experts
