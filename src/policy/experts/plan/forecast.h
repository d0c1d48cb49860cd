#pragma once

#include <vector>

#include "policy/experts/load_window.h"
#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {

/// What each expert will draw in the steps after the window, [experts], padded with zeros to a multiple
/// of 16.
///
/// A Kalman filter on a local level, per expert: counts are Poisson about a rate that wanders by a part of
/// itself each step, so busy experts get short memories (2 to 3 steps at 256 tokens) and idle ones long (20
/// steps at 5). Domains start and end at once: a single step 4.5 deviations off, or Page's cumulative sum
/// over several, restarts the filter from the steps since the shift. It reads the newest 128 steps; the mean
/// of a longer window counts for the rest of its length, since such plans serve long. Cost: 384 experts x 40
/// steps in 20 us. Weakness: counts more scattered than Poisson make it nervous.
std::vector<float> forecast_loads(const LoadWindow& window, const ForecastTuning& tuning = {});

}  // namespace trimtab::experts
