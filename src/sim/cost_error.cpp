#include "sim/cost_error.h"

#include <algorithm>
#include <cmath>

#include "base/prng.h"

namespace trimtab::sim {

double cost_factor(const model::Scenario& scenario, RequestId id) {
  const double sigma = scenario.prefill.cost_error;
  if (sigma == 0) return 1.0;
  constexpr double kSteps = 1 << 20;
  base::Prng prng(scenario.seed ^ 0xc057'e440'0000'0000ULL, id.value >> Host::kSlotBits);
  const double factor = std::exp(sigma * prng.normal() - sigma * sigma / 2);
  return std::max(std::round(factor * kSteps), 1.0) / kSteps;
}

}  // namespace trimtab::sim
