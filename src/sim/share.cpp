#include "sim/share.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/prng.h"
#include "sim/fluid.h"
#include "sim/ideal.h"

namespace trimtab::sim {
namespace {

/// Requests of each conversation stay together; the conversations change places.
void shuffle_conversations(model::Trace& trace, base::Prng& prng) {
  std::vector<std::pair<std::size_t, std::size_t>> groups;  // begin, end
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    if (i == 0 || trace.requests[i].conversation != trace.requests[i - 1].conversation)
      groups.push_back({i, i});
    groups.back().second = i + 1;
  }
  prng.shuffle(std::span(groups));
  std::vector<model::TraceRequest> requests;
  requests.reserve(trace.requests.size());
  for (const auto& [begin, end] : groups) {
    requests.insert(requests.end(), trace.requests.begin() + static_cast<std::ptrdiff_t>(begin),
                    trace.requests.begin() + static_cast<std::ptrdiff_t>(end));
  }
  trace.requests = std::move(requests);
}

constexpr std::size_t kRequestsMin = 10;

struct Balancer {
  std::string name;
  model::Scenario scenario;
};

std::array<Balancer, 3> balancers(const model::Scenario& scenario) {
  Balancer own{"this configuration", scenario}, fifo{"one FIFO pull queue", scenario},
      robin{"round robin everywhere", scenario};
  fifo.scenario.cluster.prefill.assignment = "pull";
  fifo.scenario.cluster.prefill.order = "fifo";
  fifo.scenario.cluster.prefill.vote = "min";
  fifo.scenario.cluster.prefill.compose = "fifo";
  fifo.scenario.cluster.prefill.context_parallel_quotas = 0;
  fifo.scenario.cluster.prefill.tier_bounds_tokens.clear();
  fifo.scenario.cluster.prefill.tier_quota_caps_ms.clear();
  robin.scenario = fifo.scenario;
  robin.scenario.cluster.prefill.assignment = "round_robin";
  robin.scenario.cluster.decode.policy = "round_robin";
  return {own, fifo, robin};
}

struct Measuring {
  const ShareOptions& options;
  const std::function<void(const std::string&)>& says;
  ShareReport report;

  base::Status ideal(const model::Scenario& scenario, const model::Trace& trace) {
    const std::vector<RequestWork> work = trace_work(trace, scenario);
    for (const auto& [server, into] :
         {std::pair{IdealServer::kFluid, &report.fluid}, std::pair{IdealServer::kRanks, &report.ranks}}) {
      CapacityOptions capacity = options.capacity;
      if (!into->empty()) capacity.guess = into->back();
      const auto rate = ideal_capacity(scenario, trace, work, options.workload, capacity, server);
      if (!rate) return tl::unexpected<base::Error>(rate.error());
      into->push_back(*rate);
    }
    return {};
  }

  base::Status capacity(const Balancer& balancer, BalancerShare& out, const model::Trace& trace) {
    CapacityOptions capacity = options.capacity;
    capacity.guess = out.capacity.empty() ? report.ranks.back() : std::max(out.capacity.back(), 1e-3);
    const auto found = find_capacity(balancer.scenario, trace, options.workload, capacity);
    if (!found) return tl::unexpected<base::Error>(found.error());
    out.capacity.push_back(found->rate);
    const double hours = std::max(base::to_seconds(found->at_rate.span) / 3600, 1e-9);
    out.sessions_per_hour.push_back(found->rate > 0 ? static_cast<double>(trace.conversations) / hours : 0);
    return {};
  }

  base::Status saturated(const Balancer& balancer, BalancerShare& out, const model::Trace& trace) {
    for (const SaturatedStage stage : options.stages) {
      std::vector<Saturated>* into = stage == SaturatedStage::kWhole     ? &out.whole
                                     : stage == SaturatedStage::kPrefill ? &out.prefill
                                                                         : &out.decode;
      auto one = measure_saturated(balancer.scenario, trace, options.workload, stage);
      if (!one) return tl::unexpected<base::Error>(one.error());
      into->push_back(*one);
    }
    return {};
  }
};

}  // namespace

model::Trace jittered(const model::Trace& trace, std::uint64_t seed, Nanos span) {
  model::Trace out = trace;
  if (seed == 0) return out;
  base::Prng prng(seed, 0x5ca7'7e2);
  if (out.closed_loop) {
    shuffle_conversations(out, prng);
    return out;
  }
  for (model::TraceRequest& request : out.requests) {
    const double moved = (2 * prng.uniform() - 1) * static_cast<double>(span.value);
    request.arrival = std::max(Nanos{}, request.arrival + Nanos{static_cast<std::int64_t>(moved)});
  }
  std::ranges::stable_sort(out.requests, {}, &model::TraceRequest::arrival);
  return out;
}

Estimate Estimate::of(const std::vector<double>& values) {
  Estimate out;
  if (values.empty()) return out;
  const auto n = static_cast<double>(values.size());
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() < 2) return out;
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  // Student's t at 97.5 % for 1 to 10 degrees of freedom, then what it tends to.
  constexpr std::array<double, 10> kT = {12.706, 4.303, 3.182, 2.776, 2.571,
                                         2.447,  2.365, 2.306, 2.262, 2.228};
  const std::size_t degrees = values.size() - 1;
  const double t = degrees <= kT.size() ? kT[degrees - 1] : 1.96 + 2.6 / static_cast<double>(degrees);
  out.half_width = t * std::sqrt(squares / (n - 1) / n);
  return out;
}

base::Result<ShareReport> measure_share(const model::Scenario& scenario, const model::Trace& trace,
                                        const ShareOptions& options,
                                        const std::function<void(const std::string&)>& says) {
  if (options.seeds < 1) {
    return base::fail(base::Code::kInvalidArgument, "0 seeds: nothing to measure; give at least 1", "share");
  }
  // Repeated until it fills the fleet, a handful of requests takes minutes and measures one request's luck.
  if (trace.requests.size() < kRequestsMin) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("the trace has {} request{}: a share is of a fleet under load; give at least "
                    "{} (`trimtab simulate` without --share runs any)",
                    trace.requests.size(), trace.requests.size() == 1 ? "" : "s", kRequestsMin),
        "share");
  }
  const auto all = balancers(scenario);
  Measuring measuring{options, says, {}};
  measuring.report.seeds = options.seeds;
  for (const Balancer& each : all) measuring.report.balancers.push_back({each.name, {}, {}, {}, {}, {}});
  for (std::uint64_t seed = 0; seed < options.seeds; ++seed) {
    const model::Trace day = jittered(trace, seed, Nanos{1'500'000'000});
    if (options.with_capacity) {
      if (says) says(fmt::format("seed {}: ideal servers", seed));
      TRIMTAB_TRY(measuring.ideal(scenario, day));
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      Balancer balancer = all[i];
      balancer.scenario.seed = scenario.seed + seed;
      BalancerShare& out = measuring.report.balancers[i];
      if (options.with_capacity) {
        if (says) says(fmt::format("seed {}: capacity of {}", seed, balancer.name));
        TRIMTAB_TRY(measuring.capacity(balancer, out, day));
      }
      if (says) says(fmt::format("seed {}: {} saturated", seed, balancer.name));
      TRIMTAB_TRY(measuring.saturated(balancer, out, day));
    }
  }
  return std::move(measuring.report);
}

}  // namespace trimtab::sim
