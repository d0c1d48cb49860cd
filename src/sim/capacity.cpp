#include "sim/capacity.h"

#include <algorithm>
#include <optional>

#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

bool holds(const Result& result, double share) {
  if (result.failed + result.unfinished > 0) return false;
  return std::ranges::all_of(result.tiers,
                             [share](const Latencies& tier) { return tier.share_served_well() >= share; });
}

}  // namespace

base::Result<Capacity> find_capacity(const model::Scenario& scenario, const model::Trace& trace,
                                     WorkloadOptions workload, const CapacityOptions& options,
                                     const std::function<void(double, bool)>& tried) {
  Capacity capacity;
  std::optional<base::Error> error;
  const auto attempt = [&](double rate) {
    workload.rate = rate;
    auto items = Workload::make(trace, workload);
    auto simulation =
        items ? Simulation::make(scenario, std::move(*items))
              : base::Result<std::unique_ptr<Simulation>>(tl::unexpected<base::Error>(items.error()));
    if (!simulation) {
      error = simulation.error();
      return false;
    }
    Result result = (*simulation)->run();
    ++capacity.runs;
    const bool held = holds(result, options.share);
    if (tried) tried(rate, held);
    if (held && rate > capacity.rate) {
      capacity.rate = rate;
      capacity.at_rate = std::move(result);
    }
    return held;
  };
  double low = 0, high = 1;
  while (high <= options.rate_most && attempt(high)) {
    low = high;
    high *= 2;
  }
  if (low == 0) {
    low = high / 2;
    while (!error && low >= options.rate_least && !attempt(low)) {
      high = low;
      low /= 2;
    }
  }
  if (error) return tl::unexpected<base::Error>(*error);
  if (capacity.rate == 0) return capacity;
  while (high / low > 1 + options.precision) {
    const double middle = (low + high) / 2;
    (attempt(middle) ? low : high) = middle;
  }
  return capacity;
}

}  // namespace trimtab::sim
