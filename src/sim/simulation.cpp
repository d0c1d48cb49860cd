#include "sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "queue/assigned_queue.h"

namespace trimtab::sim {
namespace {

constexpr std::uint32_t kNextOfTrace = UINT32_MAX;  // an arrival that depends on nothing

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
  return {};
}

}  // namespace

base::Result<std::unique_ptr<Simulation>> Simulation::make(const model::Scenario& asked, Workload workload) {
  TRIMTAB_TRY(check(asked));
  model::Scenario scenario = asked;
  TRIMTAB_TRY(prepare_experts(scenario));
  auto queue = queue::make_queue(scenario.cluster.prefill, scenario.seed);
  if (!queue) return tl::unexpected<base::Error>(queue.error());
  auto cluster = cluster::Cluster::make(scenario.cluster, scenario.profile, std::move(*queue));
  if (!cluster) return tl::unexpected<base::Error>(cluster.error());
  return std::unique_ptr<Simulation>(new Simulation(scenario, std::move(workload), std::move(*cluster)));
}

Simulation::Simulation(const model::Scenario& scenario, Workload workload,
                       std::unique_ptr<cluster::Cluster> cluster)
    : scenario_(scenario),
      workload_(std::move(workload)),
      cluster_(std::move(cluster)),
      agents_(scenario.cluster, scenario.profile),
      cache_(workload_.trace().block_tokens == 0
                 ? 0
                 : scenario.pool.capacity_blocks * model::kBlockTokens / workload_.trace().block_tokens),
      read_free_(scenario.cluster.prefill.engines),
      cost_(scenario.profile.cost, scenario.cluster.prefill.quota_scope) {
  cluster_->keep_records(false);
  for (std::uint32_t e = 0; e < scenario.cluster.prefill.engines; ++e)
    prefill_.emplace_back(EngineId{e}, scenario_, *this);
  for (std::uint32_t g = 0; g < scenario.cluster.decode.groups; ++g)
    decode_.emplace_back(EngineId{g}, scenario_, *this);
  result_.tiers.resize(scenario_.report_bounds_tokens.size() + 1);
}

Result Simulation::run(const std::function<void(const Progress&)>& progress) {
  for (PrefillGroup& group : prefill_) group.join();
  for (DecodeGroup& group : decode_) group.join();
  schedule_next();
  while (!queue_.empty()) {
    const QueuedEvent event = queue_.pop();
    ++result_.events;
    result_.event_hash = base::mix(result_.event_hash, static_cast<std::uint64_t>(event.at.value));
    result_.event_hash = base::mix(result_.event_hash, event.b * 8 + static_cast<std::uint64_t>(event.kind));
    if (recorder_ != nullptr && recorder_->due(event.at)) record_sample(event.at);
    dispatch(event);
    if (progress && result_.events % 65'536 == 0) {
      progress({result_.submitted, result_.finished + result_.failed, queue_.now()});
    }
    if (live_ == 0 && arriving_.size() == arriving_free_.size() && drawn_ == INT64_MAX)
      break;  // only timers are left
  }
  return collect();
}

void Simulation::schedule_next() {
  const auto item = workload_.next();
  if (!item) {
    drawn_ = INT64_MAX;
    return;
  }
  schedule(*item, kNextOfTrace);
}

void Simulation::dispatch(const QueuedEvent& event) {
  switch (event.kind) {
    case EventKind::kArrival: {
      const Workload::Item item = arriving_[event.a];
      arriving_free_.push_back(event.a);
      if (event.b == kNextOfTrace) schedule_next();
      arrive(item);
      break;
    }
    case EventKind::kPrefillStep:
      prefill_[event.a].step_ended(event.b);
      break;
    case EventKind::kPrefillReady: {
      const SimRequest& request = requests_[event.a];
      if (request.prefill_pass == event.b)
        prefill_[request.prefill.engine.value].add(request.prefill.rank, event.a);
      break;
    }
    case EventKind::kHandedOver:
      if (requests_[event.a].prefill_pass == event.b) handed_over(event.a);
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
  }
}

void Simulation::arrive(const Workload::Item& item) {
  const model::TraceRequest& asked = workload_.request(item);
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(requests_.size());
    requests_.emplace_back();
    items_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  SimRequest& request = requests_[slot];
  const SimRequest before = request;
  request = SimRequest{};
  request.prefill_pass = before.prefill_pass + 1;
  request.decode_pass = before.decode_pass + 1;
  request.id = RequestId{(++sequence_ << kSlotBits) | slot};
  request.live = true;
  request.prompt = asked.prompt_tokens;
  request.output = std::max<std::int64_t>(asked.output_tokens, 1);
  request.submitted = queue_.now();
  items_[slot] = item;
  if (live_++ == 0 && result_.submitted == 0) first_arrival_ = queue_.now();
  ++result_.submitted;
  result_.prompt_tokens += request.prompt;
  const std::int64_t room = scenario_.profile.context_limit.value - request.prompt;
  // Clients allow what the context allows: nobody but the engine knows the real length.
  const std::int64_t limit = std::max(room, request.output + 1);
  tell(cluster::Submitted{request.id, TokenCount{request.prompt}, TokenCount{limit}, {}, base::kForever});
}

void Simulation::tell(cluster::Event event) {
  told_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  while (!told_.empty()) {
    const cluster::Event next = std::move(told_.front());
    told_.pop_front();
    step(next);
  }
  stepping_ = false;
  free_ended();
}

void Simulation::step(const cluster::Event& event) {
  actions_.clear();
  cluster_->step(event, queue_.now(), actions_);
  agents_.observe(event);
  for (const cluster::Action& action : actions_) agents_.observe(action);
  for (const cluster::Action& action : actions_) perform(action);
  pulls_.clear();
  agents_.take_pulls(pulls_);
  for (cluster::Event& pull : pulls_) told_.push_back(std::move(pull));
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

void Simulation::end(std::uint32_t slot) {
  requests_[slot].live = false;
  ended_.push_back(slot);
  last_end_ = queue_.now();
  --live_;
  const auto next = workload_.follow(items_[slot], queue_.now());
  if (!next) return;
  schedule(*next, 0);
}

void Simulation::schedule(const Workload::Item& item, std::uint64_t kind) {
  std::uint32_t at = 0;
  if (arriving_free_.empty()) {
    at = static_cast<std::uint32_t>(arriving_.size());
    arriving_.push_back(item);
  } else {
    at = arriving_free_.back();
    arriving_free_.pop_back();
    arriving_[at] = item;
  }
  queue_.at(item.at, EventKind::kArrival, at, kind);
}

/// Once everything that still names them has been done.
void Simulation::free_ended() {
  for (const std::uint32_t slot : ended_) {
    ++requests_[slot].prefill_pass;
    ++requests_[slot].decode_pass;
    requests_[slot].id = RequestId{0};
    free_.push_back(slot);
  }
  ended_.clear();
}

Result Simulation::collect() {
  result_.unfinished = live_;
  result_.span = last_end_ - first_arrival_;
  result_.evicted_blocks = cache_.evicted();
  const double span = std::max(base::to_seconds(result_.span), 1e-9);
  for (const PrefillGroup& group : prefill_) {
    result_.prefill_steps += group.steps();
    result_.prefill_times.add(group.times());
    result_.prefill_busy += base::to_seconds(group.busy()) / span / static_cast<double>(prefill_.size());
  }
  for (const DecodeGroup& group : decode_) {
    result_.decode_steps += group.steps();
    result_.preemptions += group.preemptions();
    result_.decode_times.add(group.times());
    result_.decode_busy += base::to_seconds(group.busy()) / span / static_cast<double>(decode_.size());
  }
  return std::move(result_);
}

}  // namespace trimtab::sim
