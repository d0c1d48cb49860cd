#include "policy/experts/plan/incremental.h"

#include <algorithm>
#include <vector>

#include "policy/experts/plan/forecast.h"
#include "policy/experts/plan/square_search.h"

namespace trimtab::experts {
namespace {

constexpr double kRecencyOfWindow = 0.4;

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

}  // namespace

SlotMap without_duplicates(const Shape& shape, std::span<const std::int32_t> map,
                           std::span<const float> loads) {
  SlotMap out(map.begin(), map.end());
  std::vector<std::int32_t> copies(at(shape.experts));
  std::vector<std::int32_t> holder(at(shape.experts), -1);
  std::vector<std::int32_t> vacant;
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const auto expert = at(out[at(slot)]);
    if (holder[expert] == shape.rank_of_slot(slot)) {
      vacant.push_back(slot);
    } else {
      holder[expert] = shape.rank_of_slot(slot);
      ++copies[expert];
    }
  }
  const std::int32_t width = shape.slots_per_rank();
  for (const std::int32_t slot : vacant) {
    const auto first = out.begin() + shape.rank_of_slot(slot) * width;
    const auto share = [&](std::int32_t expert) {
      return loads[at(expert)] / static_cast<float>(copies[at(expert)]);
    };
    std::int32_t best = -1;
    for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
      if (std::find(first, first + width, expert) != first + width) continue;
      if (best < 0 || share(expert) > share(best) ||
          (share(expert) == share(best) && copies[at(expert)] < copies[at(best)]))
        best = expert;
    }
    out[at(slot)] = best;
    ++copies[at(best)];
  }
  return out;
}

SlotMap improve(const Shape& shape, const LoadWindow& window, std::span<const std::int32_t> before,
                std::int32_t period_steps, const PeakOptions& options, PeakResult& result) {
  const std::vector<float> loads = forecast_loads(window);
  SlotMap map = without_duplicates(shape, before, loads);
  PeakOptions left = options;
  if (left.moves_max >= 0) {
    const std::int64_t already = received_copies(shape, before, map);
    left.moves_max = static_cast<std::int32_t>(std::max<std::int64_t>(0, left.moves_max - already));
  }
  if (period_steps > kShortPeriodSteps) {
    LayerLoads steps;
    const std::int32_t bin = window.steps() <= 256 ? 1 : window.steps() / 125;
    steps.assign(window, recency_weights(window.steps(), kRecencyOfWindow * window.steps()), bin);
    result = SquareSearch().run(shape, steps, before, left, map);
  } else {
    result = PeakSearch().run(shape, loads, before, left, map);
  }
  return map;
}

}  // namespace trimtab::experts
