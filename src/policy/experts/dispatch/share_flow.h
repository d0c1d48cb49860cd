#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// The error for loads that ShareFlow::load refused: names expert and value.
tl::unexpected<base::Error> bad_loads(std::span<const double> tokens);
tl::unexpected<base::Error> bad_loads(std::span<const std::int64_t> tokens);
tl::unexpected<base::Error> bad_loads(std::span<const std::int32_t> tokens);

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
  std::span<const std::int32_t> map() const { return map_; }

  /// Takes the loads, [experts]: fixes the unit and pours the experts with one copy; the others' copies carry
  /// nothing until they are poured. False, and no change, if a load is NaN, infinite or negative, or if they
  /// overflow in sum. Not after `replace`.
  bool load(std::span<const double> tokens);
  bool load(std::span<const std::int64_t> tokens);
  bool load(std::span<const std::int32_t> tokens);

  /// Every expert in even parts over its copies.
  void even();
  /// Any start: the parts of all slots, adding up to `expert_units` for each expert with several copies.
  void place(std::span<const std::int64_t> slot_units);
  /// One round of water-filling: each expert in turn is poured anew over its copies, as level as possible. It
  /// never raises the peak, and descends on the sum of squared rank loads.
  void sweep();
  /// Lowers the peak to its minimum, or only to `enough` units if that is higher; stops early, with the peak
  /// not yet there, once it is proved to be `hopeless` or more. Returns the peak.
  std::int64_t level(std::int64_t enough = 0, std::int64_t hopeless = INT64_MAX);

  /// Gives every rank a capacity and moves as much load as can be from ranks above it to ranks below it.
  /// Returns the overload that is left, summed over ranks: the least of any shares. What is left lies on
  /// stuck ranks: no path leads from them to a rank with room.
  std::int64_t drain(std::int64_t capacity);
  /// After `drain`: the knot of stuck ranks that a rank belongs to, or -1; knots that load can pass between
  /// are one.
  std::span<const std::int32_t> knots() const { return knots_; }

  /// Puts a copy of `expert` into the slot, in place of one of an expert with copies elsewhere, whose load is
  /// poured over those; the new copy carries nothing yet. The rank must not hold `expert`.
  void replace(std::int32_t slot, std::int32_t expert);
  /// Two slots of different ranks change experts, each with the load it carries. Neither rank may hold the
  /// other's expert.
  void exchange(std::int32_t slot, std::int32_t other);

  double unit_tokens() const { return unit_tokens_; }
  std::int64_t total() const { return total_; }
  std::int64_t peak() const;
  /// Load of each rank in units, [ranks].
  std::span<const std::int64_t> rank_units() const { return rank_units_; }
  /// Part of each slot in units, [slots].
  std::span<const std::int64_t> slot_units() const { return slot_units_; }
  /// Whole load of each expert in units, [experts].
  std::span<const std::int64_t> expert_units() const { return expert_units_; }
  /// Experts with copies on several ranks, and the copies of one, as slots in a ring (ascending, both, until
  /// `replace` adds some).
  std::span<const std::int32_t> replicated() const { return replicated_; }
  std::int32_t first_slot(std::int32_t expert) const { return first_slot_[static_cast<std::size_t>(expert)]; }
  std::int32_t next_slot(std::int32_t slot) const { return next_slot_[static_cast<std::size_t>(slot)]; }
  /// False for a second copy on the rank.
  bool is_host(std::int32_t slot) const {
    return next_slot(slot) != slot || first_slot(map_[static_cast<std::size_t>(slot)]) == slot;
  }
  std::int32_t hosts(std::int32_t expert) const { return hosts_[static_cast<std::size_t>(expert)]; }

  /// After `level`: ranks whose trapped load proves the peak (empty: the mean of all ranks proves it), and
  /// that proof: trapped units over ranks, rounded up.
  std::span<const std::int32_t> tight_ranks() const { return tight_; }
  std::int64_t bound_units() const { return bound_; }
  /// Paths pushed by the last `level`.
  std::int64_t pushes() const { return pushes_; }

 private:
  template <class T>
  bool load_any(std::span<const T> tokens);
  void pour(std::int32_t expert);
  void pour_many(std::int32_t first, std::int64_t units);
  void pour_even(std::int32_t expert);
  std::int32_t find_path(std::int32_t from, std::int64_t threshold);
  void push_path(std::int32_t from, std::int32_t to, std::int64_t threshold);
  void add_link(std::int32_t slot);
  void make_link(std::int32_t slot);
  std::int32_t slot_before(std::int32_t slot) const;
  void tie_knot(std::int32_t from);

  Shape shape_;
  SlotMap map_;
  bool changed_ = false;
  std::int64_t total_ = 0, bound_ = 0, pushes_ = 0;
  double unit_tokens_ = 1;
  std::vector<std::int64_t> rank_units_, slot_units_, expert_units_;
  // Copies of an expert form a ring of slots; one slot a rank.
  std::vector<std::int32_t> replicated_, hosts_, first_slot_, next_slot_, rank_of_slot_;
  std::vector<std::int32_t> fixed_experts_, fixed_first_;  // experts with one host, by rank
  std::vector<std::int32_t> links_, link_count_;  // [ranks, slots_per_rank]: slots in rings of several
  // Of the path search: ranks in the order reached, and the slots through which each was reached.
  std::vector<std::int32_t> tight_, queue_, left_, entered_, rank_stamp_, expert_stamp_;
  std::vector<std::int32_t> knots_, touched_;
  std::int32_t stamp_ = 0, reached_ = 0;
  std::vector<std::pair<std::int64_t, std::int32_t>> bases_;
};

}  // namespace trimtab::experts
