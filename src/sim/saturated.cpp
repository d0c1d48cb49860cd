// Measure (c): a saturated run beside the same requests on perfectly balanced engines.
#include <algorithm>
#include <cmath>

#include "sim/fluid.h"
#include "sim/ideal.h"
#include "sim/share.h"
#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

constexpr double kOverload = 1.3;    // offered work over what the ideal could take
constexpr double kWindowFrom = 0.3;  // of the arrivals' span: queues and batches are full by then

/// Sums of what was done within [from, until): a request's prefill counts where its first token is, its
/// decode steps where they were, evenly between first and last token.
WorkSums done_within(const Result& result, const model::Scenario& scenario, Nanos from, Nanos until) {
  WorkSums sums;
  const double tps = scenario.decode.tokens_per_step;
  for (const RequestTimes& request : result.requests) {
    const RequestWork work = work_of(scenario, request.prompt, request.hit, request.output);
    if (request.first_token >= from && request.first_token < until) {
      ++sums.requests;
      sums.computed_tokens += work.prompt - work.hit;
      sums.hit_tokens += work.hit;
      sums.attention_ns += static_cast<double>(work.attention.value);
      sums.rest_ns += static_cast<double>(work.rest.value);
    }
    if (request.ended <= from || request.first_token >= until || work.output < 2) continue;
    const double span = std::max(base::to_seconds(request.ended - request.first_token), 1e-9);
    const double begin = std::clamp(base::to_seconds(from - request.first_token) / span, 0.0, 1.0);
    const double end = std::clamp(base::to_seconds(until - request.first_token) / span, 0.0, 1.0);
    const double steps = static_cast<double>(work.output - 1) / tps;
    const double first = begin * steps, last = end * steps;
    sums.request_steps += last - first;
    sums.output_tokens += static_cast<std::int64_t>((last - first) * tps);
    sums.kv_token_steps += (last - first) * (static_cast<double>(work.prompt + 1) + tps * (first + last) / 2);
  }
  return sums;
}

/// The scenario with the other stage made free.
void isolate(model::Scenario& scenario, SaturatedStage stage) {
  if (stage == SaturatedStage::kDecode) {
    scenario.profile.cost = model::QuadraticCost{1'000, 1, 0};
    scenario.pool.enabled = false;
    scenario.network.hand_over_bytes_per_s = 1e15;
    scenario.prefill.cost_error = 0;
    scenario.cluster.prefill.chunk_tokens_max = 1 << 20;
    // Decode alone: in which order prefill would have let requests through is not its doing.
    model::PrefillConfig& prefill = scenario.cluster.prefill;
    prefill.assignment = "pull";
    prefill.order = "fifo";
    prefill.vote = "min";
    prefill.compose = "fifo";
    prefill.context_parallel_quotas = 0;
    prefill.tier_bounds_tokens.clear();
    prefill.tier_quota_caps_ms.clear();
  } else if (stage == SaturatedStage::kPrefill) {
    model::DecodeStepCost free;
    free.fixed = Nanos{1'000};
    free.attention_ns_per_kv_token = free.dispatch_ns_per_request = free.moe_ns_per_request = 0;
    scenario.profile.decode_step = free;
    scenario.cluster.decode.max_running = 60'000;
    scenario.cluster.decode.kv_blocks = 1 << 22;
  }
}

struct Window {
  Nanos from, until;
  double seconds() const { return base::to_seconds(until - from); }
};

Window window_of(Nanos arrivals) {
  return {Nanos{static_cast<std::int64_t>(static_cast<double>(arrivals.value) * kWindowFrom)}, arrivals};
}

/// Points of 100 of the window, for the stage's mean engine.
LossSplit split(const StageSample& from, const StageSample& until, const model::Scenario& scenario,
                bool decode, double window_s, double share) {
  const double engines = decode ? scenario.cluster.decode.groups : scenario.cluster.prefill.engines;
  const double point = window_s * 1e9 * engines / 100;
  const StepTimes& a = decode ? from.decode : from.prefill;
  const StepTimes& b = decode ? until.decode : until.prefill;
  LossSplit losses;
  const double waits = (b.attention_wait - a.attention_wait + b.batch_wait - a.batch_wait) / point;
  losses.atomic = decode ? 0 : (until.prefill_uneven_ns - from.prefill_uneven_ns) / point;
  losses.mixture = waits - losses.atomic;
  const auto experts = [](const StepTimes& of) {
    return of.expert_imbalance + of.expert_drift + of.expert_moves + of.expert_copies;
  };
  losses.experts = (experts(b) - experts(a)) / point;
  losses.padding = (b.padding - a.padding) / point;
  losses.arrival = 100 - share - losses.sum();
  return losses;
}

/// What the engines' own account says was lost to arrivals: idle time, and fixed parts beyond full steps'.
double arrival_by_engines(const StageSample& from, const StageSample& until, const model::Scenario& scenario,
                          bool decode, double window_s, double ideal_s) {
  const double engines = decode ? scenario.cluster.decode.groups : scenario.cluster.prefill.engines;
  const double busy =
      (decode ? until.decode_busy_s - from.decode_busy_s : until.prefill_busy_s - from.prefill_busy_s) /
      engines;
  const double even =
      (decode ? until.decode.ideal - from.decode.ideal : until.prefill.ideal - from.prefill.ideal) * 1e-9 /
      engines;
  return (window_s - busy + even - ideal_s) / window_s * 100;
}

base::Result<Saturated> run_saturated(const model::Scenario& scenario, const model::Trace& trace,
                                      const WorkloadOptions& workload, Nanos arrivals) {
  auto items = Workload::make(trace, workload);
  if (!items) return tl::unexpected<base::Error>(items.error());
  auto simulation = Simulation::make(scenario, std::move(*items));
  if (!simulation) return tl::unexpected<base::Error>(simulation.error());
  const Window window = window_of(arrivals);
  (*simulation)->sample_at({window.from, window.until});
  const Result result = (*simulation)->run();
  TRIMTAB_TRY(check_conservation(scenario, trace, result));
  const WorkSums sums = done_within(result, scenario, window.from, window.until);
  const Offline ideal = offline(sums, scenario);
  Saturated out;
  out.decode_bound = ideal.decode_bound();
  const double seconds = std::max(window.seconds(), 1e-9), ideal_s = base::to_seconds(ideal.whole());
  out.share = ideal_s / seconds * 100;
  out.losses = split(result.samples[0], result.samples[1], scenario, out.decode_bound, seconds, out.share);
  out.unaccounted = out.losses.arrival - arrival_by_engines(result.samples[0], result.samples[1], scenario,
                                                            out.decode_bound, seconds, ideal_s);
  const double ranks =
      static_cast<double>(scenario.cluster.prefill.engines) * scenario.cluster.prefill.ranks +
      static_cast<double>(scenario.cluster.decode.groups) * scenario.cluster.decode.ranks;
  out.requests_per_engine_s = static_cast<double>(sums.requests) / seconds / ranks;
  out.tokens_per_engine_s = static_cast<double>(sums.computed_tokens + sums.output_tokens) / seconds / ranks;
  return out;
}

}  // namespace

base::Result<Saturated> measure_saturated(model::Scenario scenario, const model::Trace& trace,
                                          WorkloadOptions workload, SaturatedStage stage) {
  isolate(scenario, stage);
  scenario.keep_requests = true;
  WorkSums sums;
  const std::vector<RequestWork> works = trace_work(trace, scenario);
  for (const RequestWork& work : works) sums.add(work, scenario.decode.tokens_per_step);
  const Offline ideal = offline(sums, scenario);
  // Long enough for full batches and for the window to hold many turnovers of them.
  const double seats = static_cast<double>(scenario.cluster.decode.groups) * scenario.cluster.decode.ranks *
                       (stage == SaturatedStage::kPrefill ? 0 : ideal.decode_batch);
  const auto enough =
      static_cast<std::int64_t>(std::ceil(3 * seats / static_cast<double>(trace.requests.size())));
  workload.repeats = std::max({workload.repeats, enough, std::int64_t{1}});
  const Nanos each{std::max<std::int64_t>(
      static_cast<std::int64_t>(static_cast<double>(ideal.whole().value) / kOverload), 1)};
  const Nanos recorded = starts_of(trace, workload.start_span).span;
  workload.rate = static_cast<double>(std::max(recorded, Nanos{1}).value) / static_cast<double>(each.value);
  const Nanos arrivals{each.value * workload.repeats};
  auto measured = run_saturated(scenario, trace, workload, arrivals);
  if (!measured) return measured;
  if (!measured->decode_bound) {
    const Window window = window_of(arrivals);
    const auto fluid =
        serve_ideally(scenario, trace, works, workload, IdealServer::kFluid, {window.from, window.until});
    if (!fluid) return tl::unexpected<base::Error>(fluid.error());
    measured->fluid_busy = base::to_seconds(fluid->busy) / std::max(window.seconds(), 1e-9) * 100;
  }
  // The same with reports of every few steps that arrive at once: what goes away was staleness.
  const Nanos fresh = std::max(ideal.decode_step, Nanos{1'000'000}) * 4;
  const model::ReportModel& reports = scenario.reports;
  const bool late = reports.delay > Nanos{0} || reports.delay_steps > 0 || reports.loss > 0;
  if (measured->decode_bound && (late || scenario.report_interval > fresh)) {
    scenario.report_interval = std::min(scenario.report_interval, fresh);
    scenario.reports = {};
    const auto other = run_saturated(scenario, trace, workload, arrivals);
    if (!other) return other;
    const double gain = std::clamp(other->share - measured->share, 0.0, measured->losses.mixture);
    measured->losses.staleness = gain;
    measured->losses.mixture -= gain;
  }
  return measured;
}

}  // namespace trimtab::sim
