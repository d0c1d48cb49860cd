#include "sim/capacity.h"

#include <algorithm>

#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

bool holds(const Result& result, double share) {
  if (result.failed + result.unfinished > 0) return false;
  return std::ranges::all_of(result.tiers,
                             [share](const Latencies& tier) { return tier.share_served_well() >= share; });
}

}  // namespace

base::Result<double> search_rate(const CapacityOptions& options,
                                 const std::function<base::Result<bool>(double)>& holds) {
  double low = 0, high = std::clamp(options.guess, options.rate_least, options.rate_most);
  // The first steps are small when the guess is good.
  double factor = options.guess == 1 ? 2 : 1.1;
  while (high <= options.rate_most) {
    const auto held = holds(high);
    if (!held) return tl::unexpected<base::Error>(held.error());
    if (!*held) break;
    low = high;
    high *= factor;
    factor = std::min(factor * factor, 2.0);
  }
  if (low == 0) {
    low = high / factor;
    while (true) {
      if (low < options.rate_least) return 0.0;
      const auto held = holds(low);
      if (!held) return tl::unexpected<base::Error>(held.error());
      if (*held) break;
      high = low;
      factor = std::min(factor * factor, 2.0);
      low /= factor;
    }
  }
  while (high / low > 1 + options.precision) {
    const double middle = (low + high) / 2;
    const auto held = holds(middle);
    if (!held) return tl::unexpected<base::Error>(held.error());
    (*held ? low : high) = middle;
  }
  return low;
}

base::Result<Capacity> find_capacity(const model::Scenario& scenario, const model::Trace& trace,
                                     WorkloadOptions workload, const CapacityOptions& options,
                                     const std::function<void(double, bool)>& tried) {
  Capacity capacity;
  const auto rate = search_rate(options, [&](double at) -> base::Result<bool> {
    workload.rate = at;
    auto items = Workload::make(trace, workload);
    if (!items) return tl::unexpected<base::Error>(items.error());
    auto simulation = Simulation::make(scenario, std::move(*items));
    if (!simulation) return tl::unexpected<base::Error>(simulation.error());
    Result result = (*simulation)->run();
    ++capacity.runs;
    const bool held = holds(result, options.share);
    if (tried) tried(at, held);
    if (!held && capacity.rate == 0) capacity.at_rate = std::move(result);
    if (held && at > capacity.rate) {
      capacity.rate = at;
      capacity.at_rate = std::move(result);
    }
    return held;
  });
  if (!rate) return tl::unexpected<base::Error>(rate.error());
  return capacity;
}

}  // namespace trimtab::sim
