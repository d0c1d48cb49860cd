#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// One layer's load as a flow from experts over their copies to ranks, in integer units (a power of two of
/// tokens, chosen so that the whole layer is about 2^52 of them): sums are exact, so the minimal peak is
/// exact to one unit, nothing depends on the machine, and no tolerance decides anything.
///
/// Minimal peak: ranks above the threshold push load along shortest residual paths (expert e goes from rank g
/// to rank h if g carries some of it and h holds a copy) to ranks below it; when the ranks reached from an
/// overloaded rank hold none below the threshold, all their load is trapped among them, and their mean is the
/// new threshold. It ends with a set of ranks whose trapped load over their number is the peak: no shares can
/// beat that, so the peak is optimal (max-flow/min-cut; Ford and Fulkerson 1956, Edmonds and Karp 1972;
/// thresholds by Dinkelbach's iteration).
///
/// Copies of one expert on one rank count as one copy, in the lowest slot. No call after `reset` allocates.
class ShareFlow {
 public:
  /// Lays out a map, which must be legal.
  void reset(const Shape& shape, std::span<const std::int32_t> map);
  const Shape& shape() const { return shape_; }

  /// Takes the loads, [experts], finite, not negative: fixes the unit and pours the experts with one copy.
  /// False if a load is not legal.
  bool load(std::span<const double> tokens);
  bool load(std::span<const std::int64_t> tokens);

  /// Every expert in even parts over its copies.
  void even();
  /// One round of water-filling: each expert in turn is poured anew over its copies, as level as possible. It
  /// never raises the peak, and descends on the sum of squared rank loads.
  void sweep();
  /// Lowers the peak to its minimum, or only to `enough` units if that is higher. Returns the peak.
  std::int64_t level(std::int64_t enough = 0);

  double unit_tokens() const { return unit_tokens_; }
  std::int64_t total() const { return total_; }
  /// Load of each rank in units, [ranks].
  std::span<const std::int64_t> rank_units() const { return rank_units_; }
  /// Part of each slot in units, [slots].
  std::span<const std::int64_t> slot_units() const { return slot_units_; }
  /// Whole load of each expert in units, [experts].
  std::span<const std::int64_t> expert_units() const { return expert_units_; }
  /// Experts with copies on several ranks, ascending; and the copies of one, as slots, in a ring.
  std::span<const std::int32_t> replicated() const { return replicated_; }
  std::int32_t first_slot(std::int32_t expert) const { return first_slot_[static_cast<std::size_t>(expert)]; }
  std::int32_t next_slot(std::int32_t slot) const { return next_slot_[static_cast<std::size_t>(slot)]; }
  std::int32_t hosts(std::int32_t expert) const { return hosts_[static_cast<std::size_t>(expert)]; }

  /// After `level`: ranks whose trapped load proves the peak (empty: the mean of all ranks proves it), and
  /// that proof: trapped units over ranks, rounded up.
  std::span<const std::int32_t> tight_ranks() const { return tight_; }
  std::int64_t bound_units() const { return bound_; }
  /// Paths pushed by the last `level`.
  std::int64_t pushes() const { return pushes_; }

 private:
  Shape shape_;
  std::int64_t total_ = 0, bound_ = 0, pushes_ = 0;
  double unit_tokens_ = 1;
  std::vector<std::int64_t> rank_units_, slot_units_, expert_units_, fixed_units_;
  std::vector<std::int32_t> replicated_, hosts_, first_slot_, next_slot_, rank_of_slot_;
  std::vector<std::int32_t> fixed_slots_, fixed_first_;  // slots of experts with one host, by rank
  std::vector<std::int32_t> links_, links_first_;        // slots of replicated experts, by rank
  std::vector<std::int32_t> tight_, queue_, parent_, seen_;
  std::int32_t stamp_ = 0;
};

}  // namespace trimtab::experts
