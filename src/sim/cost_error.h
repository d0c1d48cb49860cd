#pragma once

#include "model/scenario.h"
#include "sim/host.h"

namespace trimtab::sim {

/// True over predicted time of a request's prefill: lognormal with mean 1 and sigma `prefill.cost_error`, the
/// same for the n-th submitted request of every run with the scenario's seed, whatever rank computes it. In
/// steps of 2^-20, so that the last bit of a machine's `exp` cannot show. 1 without an error.
double cost_factor(const model::Scenario& scenario, RequestId id);

inline Nanos scaled(Nanos span, double factor) {
  return factor == 1.0 ? span : Nanos{static_cast<std::int64_t>(static_cast<double>(span.value) * factor)};
}

}  // namespace trimtab::sim
