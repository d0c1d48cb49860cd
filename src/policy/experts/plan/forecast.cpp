#include "policy/experts/plan/forecast.h"

#include <algorithm>

namespace trimtab::experts {
namespace {

constexpr std::int32_t kFilterSteps = 128;

}  // namespace

std::vector<float> forecast_loads(const LoadWindow& window, const ForecastTuning& tuning) {
  constexpr std::int32_t kLanes = LoadWindow::kLanes;
  const std::int32_t steps = std::min(window.steps(), kFilterSteps), first = window.steps() - steps;
  const std::int32_t padded = (window.experts() + kLanes - 1) / kLanes * kLanes;
  std::vector<float> expected(static_cast<std::size_t>(padded));
  std::vector<float> tile(static_cast<std::size_t>(steps) * kLanes);
  for (std::int32_t expert = 0; expert < padded; expert += kLanes) {
    std::ranges::fill(tile, 0.0F);
    for (std::int32_t lane = 0; lane < kLanes && expert + lane < window.experts(); ++lane) {
      const float* loads = window.of(expert + lane).data() + first;
      for (std::int32_t step = 0; step < steps; ++step)
        tile[static_cast<std::size_t>(step * kLanes + lane)] = loads[step];
    }
    kernels().forecast(tile.data(), steps, kLanes, tuning, expected.data() + expert);
  }
  // A plan serves about as long as its window. What wanders comes back meanwhile, and domains end.
  if (window.steps() > kFilterSteps) {
    const float newest = static_cast<float>(kFilterSteps) / static_cast<float>(window.steps());
    for (std::int32_t expert = 0; expert < window.experts(); ++expert) {
      const auto mean =
          static_cast<float>(window.totals()[static_cast<std::size_t>(expert)] / window.steps());
      float& load = expected[static_cast<std::size_t>(expert)];
      load = newest * load + (1 - newest) * mean;
    }
  }
  return expected;
}

}  // namespace trimtab::experts
