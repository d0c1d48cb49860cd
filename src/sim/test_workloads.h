#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/prng.h"
#include "model/scenario.h"
#include "model/trace.h"
#include "sim/simulation.h"

/// What the tests of this room run: a small fleet, and requests as they come to one.
namespace trimtab::sim::testing {

inline model::Scenario small_fleet(std::uint32_t prefill_engines = 2, std::uint32_t decode_groups = 2) {
  model::Scenario scenario;
  scenario.profile.cost =
      model::QuadraticCost{20'000'000, 83'000'000, 1'270};  // 12,000 tokens/s, twice that at 64K
  scenario.profile.context_limit = TokenCount{1 << 20};
  scenario.profile.kv.block_bytes = base::Bytes{114'048};
  model::ClusterConfig& cluster = scenario.cluster;
  cluster.prefill.engines = prefill_engines;
  cluster.prefill.ranks = 2;
  cluster.prefill.kv_blocks = 20'000;
  cluster.prefill.quota_scope = model::QuotaScope::kWholeStep;
  cluster.prefill.lease_ms = 3'600'000;
  cluster.decode.groups = decode_groups;
  cluster.decode.ranks = 4;
  cluster.decode.kv_blocks = 4'000;
  cluster.decode.max_running = 128;
  cluster.vision.machines = 0;
  cluster.gateway.requests_in_flight_max = 1'000'000;
  cluster.gateway.queue_quota_limit_ms = 100'000'000;
  scenario.keep_requests = true;
  return scenario;
}

/// Poisson arrivals of lognormal prompts, of 50 families that share prefixes.
inline model::Trace arrivals(std::int64_t requests, double per_second, std::uint64_t seed,
                             double median_tokens = 3'000) {
  model::Trace trace;
  trace.name = "synthetic";
  trace.block_tokens = 128;
  base::Prng prng(seed);
  double at = 0;
  for (std::int64_t i = 0; i < requests; ++i) {
    at += prng.exponential(1.0 / per_second);
    model::TraceRequest request;
    request.arrival = Nanos{static_cast<std::int64_t>(at * 1e9)};
    request.prompt_tokens =
        1 + static_cast<std::int64_t>(std::min(median_tokens * std::exp(prng.normal()), 100'000.0));
    request.output_tokens = 1 + static_cast<std::int64_t>(prng.exponential(200));
    request.conversation = static_cast<std::uint32_t>(i);
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back(
        {(1 + prng.below(50)) << 32U, static_cast<std::uint32_t>(request.prompt_tokens / 128)});
    trace.requests.push_back(request);
  }
  trace.conversations = static_cast<std::uint32_t>(requests);
  return trace;
}

inline Result simulate(const model::Scenario& scenario, const model::Trace& trace,
                       const WorkloadOptions& options = {}) {
  return Simulation::make(scenario, Workload::make(trace, options).value()).value()->run();
}

inline model::Fault fault_at(model::FaultKind kind, double at_s, double for_s) {
  model::Fault fault;
  fault.kind = kind;
  fault.at = Nanos{static_cast<std::int64_t>(at_s * 1e9)};
  if (for_s >= 0) fault.span = Nanos{static_cast<std::int64_t>(for_s * 1e9)};
  return fault;
}

}  // namespace trimtab::sim::testing
