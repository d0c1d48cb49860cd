#pragma once

#include <functional>

#include "base/error.h"
#include "model/scenario.h"
#include "sim/result.h"
#include "sim/workload.h"

namespace trimtab::sim {

struct CapacityOptions {
  double share = 0.9;        // of every tier's requests must be served well (Scenario::slo_targets)
  double precision = 0.01;   // relative, of the rate
  double rate_least = 1e-3;  // below this the answer is 0
  double rate_most = 1e4;
  double guess = 1;  // where the search begins
};

/// The largest rate that holds: from the guess by doubling, then bisection to the precision. `holds`: whether
/// a rate does. 0 when not even the least does.
base::Result<double> search_rate(const CapacityOptions& options,
                                 const std::function<base::Result<bool>(double)>& holds);

struct Capacity {
  double rate = 0;  // the largest multiplier of the recorded arrival rate that holds
  Result at_rate;   // of the run at that rate
  int runs = 0;
};

/// The largest rate at which at least `share` of every tier's requests are served well and none fails:
/// doubling, then bisection. A tier without requests holds. Runs are deterministic, so the answer is; it is
/// one draw of the arrivals, and capacity need not be monotone in the rate, so the precision is of the
/// search, not of the number. `tried`: called after each run with its rate and whether it held.
base::Result<Capacity> find_capacity(const model::Scenario& scenario, const model::Trace& trace,
                                     WorkloadOptions workload, const CapacityOptions& options,
                                     const std::function<void(double, bool)>& tried = {});

}  // namespace trimtab::sim
