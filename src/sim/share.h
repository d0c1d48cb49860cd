#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/scenario.h"
#include "model/trace.h"
#include "sim/capacity.h"
#include "sim/result.h"
#include "sim/workload.h"

namespace trimtab::sim {

/// What keeps a saturated fleet from its ideal, in points of 100; with the share they add up to 100.
struct LossSplit {
  double arrival = 0;    // engines idle, steps and batches that are not full
  double staleness = 0;  // of the ranks' unevenness, what goes away with fresh reports
  double mixture = 0;  // layers wait for the rank with the most attention, and for the one with the most rest
  double atomic = 0;   // ranks are unevenly filled because a request is on one rank
  double experts = 0;  // wait for the busiest expert rank
  double padding = 0;  // batches padded to captured graph sizes
  double sum() const { return arrival + staleness + mixture + atomic + experts + padding; }
};

/// One run under more load than the fleet can take, looked at while everything is backlogged.
struct Saturated {
  double share =
      0;  // of 100: time that perfectly balanced engines need offline for what was done, over the time
  bool decode_bound = false;  // which stage decides
  LossSplit losses;           // of that stage
  double requests_per_engine_s = 0,
         tokens_per_engine_s = 0;  // an engine is a rank; tokens computed and drawn
  /// Points of the window for which a fluid prefill server (fluid.h) would have had work of the same
  /// arrivals: 100 says that no part of the loss is owed to when requests came. Of a decode bound run 0.
  double fluid_busy = 0;
  double unaccounted = 0;  // points by which the engines' own account of that stage differs from the trace's
};

enum class SaturatedStage : std::uint8_t {
  kWhole,    // the fleet as it is
  kPrefill,  // decode made free: prefill decides
  kDecode,   // prefill made free: decode runs at full concurrency; lost occupancy is charged
};

/// Runs it, checks it, and compares it with the ideal computed from the trace. Errors besides the
/// simulation's: conservation broken (a request not finished, a token not computed or computed twice, work
/// that is not the trace's), with the figures.
base::Result<Saturated> measure_saturated(model::Scenario scenario, const model::Trace& trace,
                                          WorkloadOptions workload, SaturatedStage stage);

/// Of a run with `keep_requests`: every request finished, every token computed once and drawn once, and the
/// engines' work is the trace's to 1e-6 (to 1 % for costs that depend on where a prompt is cut into chunks;
/// not compared when the cost model is wrong on purpose).
base::Status check_conservation(const model::Scenario& scenario, const model::Trace& trace,
                                const Result& result);

/// Arrivals (closed loop: the order in which conversations start) of another day: each moves by up to
/// `span` either way, conversations stay whole. Seed 0 is the trace as recorded.
model::Trace jittered(const model::Trace& trace, std::uint64_t seed, Nanos span);

/// Mean over seeds and half of its 95 % interval (Student's t; 0 for one seed).
struct Estimate {
  double mean = 0, half_width = 0;
  static Estimate of(const std::vector<double>& values);
};

struct BalancerShare {
  std::string name;
  std::vector<double> capacity, sessions_per_hour;  // per seed, as all below
  std::vector<Saturated> whole, prefill, decode;
};

struct ShareReport {
  std::uint64_t seeds = 0;
  std::vector<BalancerShare> balancers;  // the scenario's; one FIFO pull queue; round robin everywhere
  std::vector<double> fluid, ranks;      // capacities of ideal servers under the scenario's order
};

struct ShareOptions {
  std::uint64_t seeds = 1;
  WorkloadOptions workload;
  CapacityOptions capacity;
  bool with_capacity = true;
  std::vector<SaturatedStage> stages = {SaturatedStage::kWhole, SaturatedStage::kPrefill,
                                        SaturatedStage::kDecode};  // measured at saturation
};

/// Everything of `trimtab simulate --share`. `says`: what is being measured.
base::Result<ShareReport> measure_share(const model::Scenario& scenario, const model::Trace& trace,
                                        const ShareOptions& options,
                                        const std::function<void(const std::string&)>& says = {});

}  // namespace trimtab::sim
