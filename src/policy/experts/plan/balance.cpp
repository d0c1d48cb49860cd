#include <algorithm>
#include <vector>

#include "base/check.h"
#include "policy/experts/plan/kernels.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts {

Balance balance_of(const Shape& shape, std::span<const std::int32_t> map, const LoadWindow& window) {
  TRIMTAB_CHECK(map.size() == static_cast<std::size_t>(shape.slots) && window.experts() == shape.experts);
  const std::vector<std::int32_t> copies = copies_of(shape, map);
  const auto steps = static_cast<std::size_t>(window.padded_steps());
  std::vector<float> load(steps), peak(steps, 0.0F);
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::ranges::fill(load, 0.0F);
    const std::int32_t width = shape.slots_per_rank();
    for (std::int32_t slot = rank * width; slot < (rank + 1) * width; ++slot) {
      const std::int32_t expert = map[static_cast<std::size_t>(slot)];
      kernels().add_scaled(load.data(), window.of(expert).data(),
                           1.0F / static_cast<float>(copies[static_cast<std::size_t>(expert)]),
                           window.padded_steps());
    }
    for (std::size_t step = 0; step < steps; ++step) peak[step] = std::max(peak[step], load[step]);
  }
  std::vector<double> total(steps, 0.0);
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    const std::span<const float> loads = window.of(expert);
    for (std::size_t step = 0; step < steps; ++step) total[step] += static_cast<double>(loads[step]);
  }
  Balance balance;
  double peaks = 0, means = 0, ratios = 0;
  for (std::size_t step = 0; step < static_cast<std::size_t>(window.steps()); ++step) {
    const double mean = total[step] / shape.ranks;
    // A step without load is perfectly balanced.
    ratios += mean > 0 ? static_cast<double>(peak[step]) / mean : 1.0;
    peaks += static_cast<double>(peak[step]);
    means += mean;
  }
  if (means > 0) balance.of_sums = peaks / means;
  balance.mean_ratio = ratios / window.steps();
  return balance;
}

}  // namespace trimtab::experts
