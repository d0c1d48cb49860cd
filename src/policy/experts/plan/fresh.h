#pragma once

#include <cstdint>

#include "policy/experts/load_window.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts {

/// From this many ranks on a rank holds few copies, and the hottest ones decide rather than their sums.
constexpr std::int32_t kManyRanks = 32;

/// A map from nothing: copies, construction, exchanges on the squares, then (see Effort) on the sum of peaks.
/// Small shapes, and short windows of kQuality, try several ways to weigh the copies and keep the best.
SlotMap plan_fresh(const Shape& shape, const LoadWindow& window, const PlanOptions& options,
                   PlanReason& reason);

}  // namespace trimtab::experts
