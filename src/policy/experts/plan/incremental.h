#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/experts/plan/placement.h"
#include "policy/experts/plan/swaps.h"

namespace trimtab::experts {

struct IncrementalOptions {
  double move_price = 1e-3;     // see PlanOptions
  std::int32_t moves_max = -1;  // negative: no cap
};

struct IncrementalResult {
  std::int64_t swaps = 0, replacements = 0;
};

/// `map` with every second copy of an expert on a rank replaced by the expert that is furthest below its
/// target and not on the rank (then the one with fewest copies, then the lowest id).
SlotMap without_duplicates(const Shape& shape, std::span<const std::int32_t> map,
                           std::span<const std::int32_t> targets);

/// Improves a legal map under a price per received copy: experts above their target copies give slots to
/// experts below it, while that pays; then exchanges, best first, while they pay. Leaves the result in
/// `placement`.
IncrementalResult improve(const Shape& shape, const LayerLoads& loads, std::span<const std::int32_t> before,
                          std::span<const std::int32_t> targets, const IncrementalOptions& options,
                          Placement& placement, SwapSearch& search);

}  // namespace trimtab::experts
