#pragma once

#include <cstdint>
#include <vector>

#include "policy/experts/plan/placement.h"

namespace trimtab::experts {

/// A slot's best exchange with a slot of another rank: what it would add to Q plus the prices.
struct Swap {
  std::int32_t partner = -1;
  float delta = 0;
};

/// Judges exchanges in a few operations each: with a on rank i and b on rank j, half the change of Q is
///   (D[j][a] - D[i][a]) / c_a + (D[i][b] - D[j][b]) / c_b + K_aa / c_a^2 + K_bb / c_b^2 - 2 K_ab / (c_a
///   c_b).
class SwapSearch {
 public:
  /// Keeps references. Call again after the placement changed other than through `apply`.
  void reset(const Shape& shape, Placement& placement);

  /// Swaps slot by slot, each slot's best at once, until none lowers Q by more than `tolerance` x Q at the
  /// start or the loads' own squares. Looks again only at ranks that changed since. Returns the swaps made.
  std::int64_t descend(double tolerance, std::int64_t swaps_max);

  /// The slot's best exchange with the slots of ranks changed after `since` (0: all ranks).
  Swap best(std::int32_t slot, std::int64_t since);
  /// Exchanges two slots.
  void apply(std::int32_t slot_a, std::int32_t slot_b);
  /// The slot's own part of the change, after its expert, share or rank's loads changed.
  void refresh(std::int32_t rank);
  std::int64_t clock() const { return clock_; }
  std::int64_t changed(std::int32_t rank) const { return changed_[static_cast<std::size_t>(rank)]; }

 private:
  Shape shape_;
  Placement* placement_ = nullptr;
  std::int64_t clock_ = 0;
  std::vector<std::int64_t> changed_;  // [ranks]: clock of the last change
  std::vector<std::int64_t> seen_;     // [slots]: clock of the last look that found nothing
  std::vector<float> own_;             // [slots]
  std::vector<float> row_;             // [experts_padded]
};

}  // namespace trimtab::experts
