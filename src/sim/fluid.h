#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "model/scenario.h"
#include "sim/capacity.h"
#include "sim/ideal.h"
#include "sim/workload.h"

namespace trimtab::sim {

enum class IdealServer : std::uint8_t {
  kFluid,  // all prefill ranks are one server as fast as all of them together: nothing is ever uneven
  kRanks,  // each rank by itself takes the next request whole: requests are atomic, but no rank waits for
           // another
};

/// How an ideal server does at one rate.
struct IdealService {
  std::vector<std::uint64_t> requests, well;  // per tier
  Nanos span;
  Nanos busy;                  // all servers together, within the window that was asked for
  double share_least() const;  // of requests served well, in the worst tier that has any
};

struct BusyWindow {
  Nanos from, until;
};

/// Serves a workload without waste: work-conserving, in the order of the scenario's queue (its keys; one
/// queue for all), with the hits of `work`, every step full. A bound on what balancing can reach under that
/// order (kFluid); kRanks is what atomic requests leave of it, attainable in principle. The SLO is the
/// simulator's. Closed loop: a request ends when it has been decoded on an otherwise empty rank, so sessions
/// come back no later than in any run. `window`: where `busy` is counted.
base::Result<IdealService> serve_ideally(const model::Scenario& scenario, const model::Trace& trace,
                                         const std::vector<RequestWork>& work, const WorkloadOptions& options,
                                         IdealServer server, const BusyWindow& window = {});

/// The largest rate at which it serves at least `options.share` of every tier well.
base::Result<double> ideal_capacity(const model::Scenario& scenario, const model::Trace& trace,
                                    const std::vector<RequestWork>& work, WorkloadOptions workload,
                                    const CapacityOptions& options, IdealServer server);

}  // namespace trimtab::sim
