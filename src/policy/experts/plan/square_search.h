#pragma once

#include <cstdint>
#include <span>

#include "policy/experts/plan/layer_loads.h"
#include "policy/experts/plan/peak_search.h"
#include "policy/experts/plan/placement.h"
#include "policy/experts/plan/swaps.h"

namespace trimtab::experts {

/// Improves a map under a price per received copy for plans that serve long: on the sum of squares over the
/// window's steps, which spreads experts that rise and fall together, so that the end of a domain unbalances
/// no rank. Experts above their target copies give slots to experts below while that pays, then exchanges,
/// best first. Cost: that of the Gram matrix and the copies, and 0.2 ms.
class SquareSearch {
 public:
  /// As PeakSearch::run; the price is that part of the sum of peaks.
  PeakResult run(const Shape& shape, const LayerLoads& loads, std::span<const std::int32_t> before,
                 const PeakOptions& options, SlotMap& map);

 private:
  Placement placement_;
  SwapSearch swaps_;
};

}  // namespace trimtab::experts
