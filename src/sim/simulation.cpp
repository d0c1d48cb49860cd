#include "sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "queue/assigned_queue.h"

namespace trimtab::sim {
namespace {

base::Status check(const model::Scenario& scenario) {
  const auto positive = [](double value, const char* name) -> base::Status {
    if (value > 0 && std::isfinite(value)) return {};
    return base::fail(base::Code::kInvalidArgument, fmt::format("{} is {}: it must be positive", name, value),
                      "scenario");
  };
  TRIMTAB_TRY(positive(scenario.decode.tokens_per_step, "decode.tokens_per_step"));
  TRIMTAB_TRY(positive(scenario.decode.expert_balance, "decode.expert_balance"));
  TRIMTAB_TRY(positive(scenario.prefill.expert_balance, "prefill.expert_balance"));
  TRIMTAB_TRY(positive(scenario.pool.read_bytes_per_s, "pool.read_bytes_per_s"));
  TRIMTAB_TRY(positive(scenario.network.hand_over_bytes_per_s, "network.hand_over_bytes_per_s"));
  TRIMTAB_TRY(positive(static_cast<double>(scenario.report_interval.value), "report_interval"));
  const model::DecodeStepCost& cost = scenario.profile.decode_step;
  if (cost.fixed.value <= 0 && cost.dispatch_ns_per_request + cost.moe_ns_per_request <= 0) {
    return base::fail(base::Code::kInvalidArgument,
                      "a decode step would take no time: give the profile's decode_step.fixed_ns",
                      "scenario");
  }
  TRIMTAB_TRY(positive(scenario.encoder.patches_per_s, "simulation.encoder.patches_per_s"));
  TRIMTAB_TRY(positive(scenario.storage.read_bytes_per_s, "simulation.storage.read_bytes_per_s"));
  TRIMTAB_TRY(positive(scenario.entrypoints.count, "simulation.entrypoints.count"));
  if (!(scenario.reports.loss >= 0 && scenario.reports.loss <= 1) || scenario.reports.delay.value < 0 ||
      scenario.reports.delay_steps < 0) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("reports: a loss of {} and a delay of {} ns and {} steps: a share and spans are "
                    "meant",
                    scenario.reports.loss, scenario.reports.delay.value, scenario.reports.delay_steps),
        "scenario");
  }
  return {};
}

/// Readers refuse such lines with their numbers; a trace made by a program comes here first.
base::Status check(const model::Trace& trace) {
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const model::TraceRequest& request = trace.requests[i];
    const auto bad = [&](const char* what, std::int64_t value) {
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("request {} of the trace has {} {}", i, what, value), trace.name);
    };
    if (request.prompt_tokens < 1) return bad("prompt_tokens", request.prompt_tokens);
    if (request.output_tokens < 0) return bad("output_tokens", request.output_tokens);
    if (request.arrival.value < 0) return bad("an arrival at", request.arrival.value);
    if (request.think.value < 0) return bad("a think time of", request.think.value);
  }
  return {};
}

}  // namespace

base::Result<std::unique_ptr<Simulation>> Simulation::make(const model::Scenario& asked, Workload workload) {
  TRIMTAB_TRY(check(asked));
  TRIMTAB_TRY(check(workload.trace()));
  TRIMTAB_TRY(FaultSchedule::check(asked));
  model::Scenario scenario = asked;
  TRIMTAB_TRY(prepare_experts(scenario));
  auto queue = queue::make_queue(scenario.cluster.prefill, scenario.seed);
  if (!queue) return tl::unexpected<base::Error>(queue.error());
  auto pool = Pool::make(scenario, workload.trace().block_tokens);
  if (!pool) return tl::unexpected<base::Error>(pool.error());
  auto gate = std::make_unique<QueueGate>(std::move(*queue));
  Parts parts{nullptr, gate.get(), nullptr, std::move(*pool)};
  base::Result<std::unique_ptr<cluster::Cluster>> cluster;
  if (const std::uint32_t count = scenario.entrypoints.count; count > 1) {
    // The entrypoint that holds a request is part of its id.
    auto placers = Placers::make(
        policy::decode_config(scenario.cluster.decode), count,
        [count](RequestId id) { return static_cast<std::uint32_t>((id.value >> kSlotBits) % count); });
    if (!placers) return tl::unexpected<base::Error>(placers.error());
    parts.placers = placers->get();
    cluster =
        cluster::Cluster::make(scenario.cluster, scenario.profile, std::move(gate), std::move(*placers));
  } else {
    cluster = cluster::Cluster::make(scenario.cluster, scenario.profile, std::move(gate));
  }
  if (!cluster) return tl::unexpected<base::Error>(cluster.error());
  parts.cluster = std::move(*cluster);
  return std::unique_ptr<Simulation>(new Simulation(scenario, std::move(workload), std::move(parts)));
}

Simulation::Simulation(const model::Scenario& scenario, Workload workload, Parts parts)
    : scenario_(scenario),
      workload_(std::move(workload)),
      cluster_(std::move(parts.cluster)),
      agents_(scenario.cluster, scenario.profile),
      gate_(parts.gate),
      placers_(parts.placers),
      pool_(std::move(parts.pool)),
      links_(scenario_),
      encoders_(scenario_, *this),
      schedule_(scenario),
      entrypoints_down_(scenario.entrypoints.count),
      report_losses_(scenario.seed, 0x2e902757ULL),
      cost_(scenario.profile.cost, scenario.cluster.prefill.quota_scope) {
  cluster_->keep_records(false);
  for (std::uint32_t e = 0; e < scenario.cluster.prefill.engines; ++e)
    prefill_.emplace_back(EngineId{e}, scenario_, *this);
  for (std::uint32_t g = 0; g < scenario.cluster.decode.groups; ++g)
    decode_.emplace_back(EngineId{g}, scenario_, *this);
  result_.tiers.resize(scenario_.report_bounds_tokens.size() + 1);
}

Result Simulation::run(const std::function<void(const Progress&)>& progress) {
  start();
  schedule_next();
  while (!queue_.empty()) {
    const QueuedEvent event = queue_.pop();
    while (result_.samples.size() < sample_times_.size() &&
           sample_times_[result_.samples.size()] <= event.at) {
      result_.samples.push_back(sample(sample_times_[result_.samples.size()]));
    }
    ++result_.events;
    result_.event_hash = base::mix(result_.event_hash, static_cast<std::uint64_t>(event.at.value));
    result_.event_hash = base::mix(result_.event_hash, event.b * 16 + static_cast<std::uint64_t>(event.kind));
    if (recorder_ != nullptr && recorder_->due(event.at)) record_sample(event.at);
    if (!serves(event)) break;
    dispatch(event);
    if (progress && result_.events % 65'536 == 0) {
      progress({result_.submitted, result_.finished + result_.failed, queue_.now()});
    }
    if (live_ == 0 && arriving_.size() == arriving_free_.size() && drawn_ == INT64_MAX)
      break;  // only timers are left
  }
  return collect();
}

void Simulation::dispatch(const QueuedEvent& event) {
  switch (event.kind) {
    case EventKind::kArrival: {
      const Arriving arriving = arriving_[event.a];
      arriving_free_.push_back(event.a);
      if (event.b != 0) schedule_next();
      arrive(arriving);
      break;
    }
    case EventKind::kPrefillStep:
      prefill_[event.a].step_ended(event.b);
      break;
    case EventKind::kPrefillReady: {
      SimRequest& request = requests_[event.a];
      if (request.prefill_pass != event.b) break;
      request.computing = true;
      prefill_[request.prefill.engine.value].add(request.prefill.rank, event.a);
      break;
    }
    case EventKind::kHandedOver:
      if (requests_[event.a].prefill_pass == event.b && !unsaid(event)) handed_over(event.a);
      break;
    case EventKind::kReserveReply: {
      const SimRequest& request = requests_[event.a];
      if (request.decode_pass == event.b / 2) {
        tell(cluster::Reserved{request.decode, request.id, event.b % 2 == 1, 0});
      }
      break;
    }
    case EventKind::kDecode:
      decode_[event.a].woken(event.b);
      break;
    case EventKind::kReport:
      reporting_ = false;
      for (DecodeGroup& group : decode_) group.report_all();
      if (std::ranges::any_of(decode_, [](const DecodeGroup& group) { return group.running() > 0; })) {
        reporting_ = true;
        queue_.after(scenario_.report_interval, EventKind::kReport);
      }
      break;
    case EventKind::kTimer:
      if (event.b == timer_) tell(cluster::Timer{});
      break;
    case EventKind::kFault:
      fault(event);
      break;
    case EventKind::kJoin:
      joined(event.a, event.b);
      break;
    case EventKind::kEncoded:
      encoders_.woken(event.a, event.b);
      break;
    case EventKind::kEmbedded:
      embedded(event.a, event.b);
      break;
    case EventKind::kLoadReport:
      load_report(event.a);
      break;
  }
}

void Simulation::tell(cluster::Event event) {
  hear(event);
  const bool behind_others = !told_.empty();
  if (stepping_ || behind_others) told_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  if (!behind_others) step(event);
  for (std::size_t next = 0; next < told_.size(); ++next) {
    event = std::move(told_[next]);
    step(event);
  }
  told_.clear();
  stepping_ = false;
  free_ended();
}

void Simulation::step(const cluster::Event& event) {
  actions_.clear();
  cluster_->step(event, queue_.now(), actions_);
  agents_.observe(event);
  for (const cluster::Action& action : actions_) agents_.observe(action);
  for (const cluster::Action& action : actions_) perform(action);
  agents_.take_pulls(told_);
}

void Simulation::perform(const cluster::Action& action) {
  std::visit(
      [this](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, cluster::SetTimer>) {
          queue_.at(one.at, EventKind::kTimer, 0, ++timer_);
        } else if constexpr (requires { this->on(one); }) {
          on(one);
        }
      },
      action);
}

StageSample Simulation::sample(Nanos at) const {
  StageSample out;
  out.at = at;
  for (const PrefillGroup& group : prefill_) {
    out.prefill.add(group.times());
    out.prefill_busy_s += base::to_seconds(group.busy());
    out.prefill_uneven_ns += group.uneven_ns();
  }
  for (const DecodeGroup& group : decode_) {
    out.decode.add(group.times());
    out.decode_busy_s += base::to_seconds(group.busy());
  }
  return out;
}

Result Simulation::collect() {
  while (result_.samples.size() < sample_times_.size())
    result_.samples.push_back(sample(sample_times_[result_.samples.size()]));
  result_.unfinished = live_;
  // What nobody could serve any more never ended; the engines may have worked after the last that did.
  result_.span = (live_ > 0 ? queue_.now() : last_end_) - first_arrival_;
  result_.evicted_blocks = pool_.evicted();
  result_.storage = pool_.outcome();
  result_.network = links_.outcome(result_.span);
  const std::uint64_t unencodable = result_.vision.unencodable;
  result_.vision = encoders_.outcome(result_.span);
  result_.vision.unencodable = unencodable;
  const double span = std::max(base::to_seconds(result_.span), 1e-9);
  for (const PrefillGroup& group : prefill_) {
    result_.prefill_steps += group.steps();
    result_.prefill_tokens += group.tokens_computed();
    result_.prefill_work_ns += group.work_ns();
    result_.prefill_times.add(group.times());
    result_.faults.steps_lost += group.lost().count;
    result_.faults.steps_lost_span += group.lost().span;
    result_.prefill_busy += base::to_seconds(group.busy()) / span / static_cast<double>(prefill_.size());
  }
  for (const DecodeGroup& group : decode_) {
    result_.decode_steps += group.steps();
    result_.preemptions += group.preemptions();
    result_.decode_times.add(group.times());
    result_.faults.steps_lost += group.lost().count;
    result_.faults.steps_lost_span += group.lost().span;
    result_.decode_busy += base::to_seconds(group.busy()) / span / static_cast<double>(decode_.size());
  }
  if (recorder_ != nullptr) recorder_->experts(prefill_.front().experts(), decode_.front().experts());
  return std::move(result_);
}

}  // namespace trimtab::sim
