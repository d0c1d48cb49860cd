#pragma once

#include <cstdint>
#include <span>

#include "policy/experts/plan/planner.h"

namespace trimtab::experts {

/// A map for one step (or for totals only): copies and places searched together, first for the least sum of
/// squares of the ranks' loads, whose gradient leads across the plateaus of the maximum, then for the least
/// maximum. `totals` [experts], checked by the caller as the shape is. Deterministic: nothing but the seed, +
/// - * / and comparisons.
SlotMap plan_single_step(const Shape& shape, std::span<const double> totals, Effort effort,
                         std::uint64_t seed);

}  // namespace trimtab::experts
