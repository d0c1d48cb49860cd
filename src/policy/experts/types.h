#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace trimtab::experts {

/// One MoE layer on its EP group. Rank r owns the physical slots [r * slots_per_rank, (r + 1) *
/// slots_per_rank); node n owns the ranks [n * ranks / nodes, (n + 1) * ranks / nodes); group g of experts is
/// [g * experts / groups, (g + 1) * experts / groups).
struct Shape {
  std::int32_t experts = 0;  // logical
  std::int32_t slots = 0;    // physical, of all ranks
  std::int32_t ranks = 0;
  std::int32_t nodes = 1;
  std::int32_t groups = 1;

  std::int32_t slots_per_rank() const { return slots / ranks; }
  std::int32_t redundant() const { return slots - experts; }
  std::int32_t rank_of_slot(std::int32_t slot) const { return slot / slots_per_rank(); }
  std::int32_t node_of_rank(std::int32_t rank) const { return rank / (ranks / nodes); }
  std::int32_t group_of_expert(std::int32_t expert) const { return expert / (experts / groups); }
  /// Copies of one expert that can be told apart: one a rank.
  std::int32_t copies_max() const { return ranks; }
};

/// Errors name the value and the fix: nothing positive, slots not a multiple of ranks (with the next count
/// that is), slots < experts, more slots than experts x ranks, ranks not a multiple of nodes, experts not a
/// multiple of groups.
base::Status check(const Shape& shape);

/// `experts + redundant` rounded up to a multiple of `ranks`, as the published engine does.
std::int64_t physical_slots(std::int64_t experts, std::int64_t redundant, std::int64_t ranks);

/// `physical_to_logical` of one layer: the expert that each slot holds, [slots].
using SlotMap = std::vector<std::int32_t>;

/// Errors: wrong length, an expert out of range, an expert without a slot. Two copies of an expert on one
/// rank are an error only with `distinct` (old maps of other planners have them).
base::Status check(const Shape& shape, std::span<const std::int32_t> map, bool distinct);

/// Experts 0, 1, 2 ... then copies of 0, 1, 2 ...: how engines start. Copies of one expert may share a rank
/// only if the shape leaves no other way.
SlotMap initial_map(const Shape& shape);

/// Copies of each expert in a map, [experts].
std::vector<std::int32_t> copies_of(const Shape& shape, std::span<const std::int32_t> map);

/// Copies of experts that a rank must receive to come from `before` to `after` (a copy that stays on its
/// rank, in whatever slot, is free). Shapes may differ in ranks when ranks were lost or gained: rank r stays
/// rank r.
std::int64_t received_copies(const Shape& shape, std::span<const std::int32_t> before,
                             std::span<const std::int32_t> after);

/// Slots that hold an expert which their rank holds in an earlier slot already.
std::int64_t duplicate_copies(const Shape& shape, std::span<const std::int32_t> map);

}  // namespace trimtab::experts
