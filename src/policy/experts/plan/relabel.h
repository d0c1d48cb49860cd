#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/experts/types.h"

namespace trimtab::experts {

/// Rows to columns, all different, with the greatest sum of values[row * size + column]. Hungarian method
/// with potentials in integers, O(size^3); ties by the lowest column reached first, so the same on every
/// machine.
std::vector<std::int32_t> assign_most(std::span<const std::int64_t> values, std::int32_t size);

/// The same plan with its ranks renamed so that fewest copies must be received from `current` (the optimum
/// over all renamings), and with each copy that stays on its rank in the slot where it is. Balance is
/// untouched. `current` may have another number of slots a rank, never of ranks. `keep_nodes`: only whole
/// nodes and the ranks within them are renamed, so that a hierarchical plan stays one; the best such
/// renaming. An empty `current` leaves the plan as it is.
SlotMap relabel(const Shape& shape, std::span<const std::int32_t> current, std::span<const std::int32_t> plan,
                bool keep_nodes);

}  // namespace trimtab::experts
