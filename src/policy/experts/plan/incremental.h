#pragma once

#include <cstdint>
#include <span>

#include "policy/experts/load_window.h"
#include "policy/experts/plan/peak_search.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// `map` with every second copy of an expert on a rank replaced by the expert with the most load per copy
/// that the rank lacks (then the one with fewest copies, then the lowest id). `loads`: [experts] or longer.
SlotMap without_duplicates(const Shape& shape, std::span<const std::int32_t> map,
                           std::span<const float> loads);

/// Up to so many steps the forecast of each expert decides; beyond, which experts rise and fall together.
constexpr std::int32_t kShortPeriodSteps = 20;

/// The next map from the one in force (legal but for duplicates, which are mended first whatever the cap):
/// changes what pays more than its price. A plan that serves for up to 20 steps lowers the peak of what the
/// experts are forecast to draw (PeakSearch); a longer one the squares over the window (SquareSearch).
SlotMap improve(const Shape& shape, const LoadWindow& window, std::span<const std::int32_t> before,
                std::int32_t period_steps, const PeakOptions& options, PeakResult& result);

}  // namespace trimtab::experts
