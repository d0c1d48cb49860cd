// What the cluster machine asks of its host, done by simulated engines.
#include <algorithm>
#include <utility>

#include "kv/hit_rule.h"
#include "sim/cost_error.h"
#include "sim/simulation.h"

namespace trimtab::sim {

SimRequest* Simulation::find(RequestId id) {
  SimRequest& request = requests_[slot_of(id)];
  return request.id == id ? &request : nullptr;
}

void Simulation::on(const cluster::Reserve& action) {
  SimRequest* request = find(action.id);
  if (request == nullptr) return;
  request->decode = action.rank;
  ++request->decode_pass;
  const bool granted =
      decode_[action.rank.engine.value].reserve(action.rank.rank, slot_of(action.id), action.tokens.value);
  queue_.after(scenario_.network.message + scenario_.network.message, EventKind::kReserveReply,
               slot_of(action.id), request->decode_pass * 2 + (granted ? 1 : 0));
}

void Simulation::on(const cluster::SendTarget& action) {
  SimRequest* request = find(action.id);
  if (request == nullptr) return;
  request->target = true;
  if (request->computed) prefill_[action.prefill.engine.value].hand_over(slot_of(action.id));
}

/// The hand-over ended while its rank computes something else, and it will say so at that step's end.
bool Simulation::unsaid(const QueuedEvent& event) {
  SimRequest& request = requests_[event.a];
  if (!scenario_.prefill.speaks_between_steps || std::exchange(request.moved, true)) return false;
  const PrefillGroup& group = prefill_[request.prefill.engine.value];
  if (!group.stepping()) return false;
  queue_.at(group.step_ends(), EventKind::kHandedOver, event.a, event.b);
  return true;
}

void Simulation::handed_over(std::uint32_t slot) {
  SimRequest& request = requests_[slot];
  ++request.prefill_pass;
  request.started = false;
  request.generated += 1;
  const std::int64_t computed = request.tokens - request.hit;
  result_.computed_tokens += computed;
  const std::int64_t block = workload_.trace().block_tokens;
  if (block > 0 && scenario_.pool.enabled) {
    workload_.runs(items_[slot], runs_);
    pool_.store(runs_, request.prompt / block, queue_.now());
    request.stored_at = queue_.now();
  }
  const bool done = request.generated >= request.output;
  tell(cluster::PrefillDone{request.prefill, request.id, request.hand_over, TokenCount{request.hit},
                            TokenCount{computed},
                            done ? model::FinishReason::kStop : model::FinishReason::kNone});
}

void Simulation::on(const cluster::StartDecode& action) {
  if (find(action.id) == nullptr) return;
  if (recorder_ != nullptr)
    recorder_->decoding(slot_of(action.id), action.rank.engine.value, action.rank.rank, queue_.now());
  decode_[action.rank.engine.value].start(slot_of(action.id));
  if (placers_ != nullptr) {
    const SimRequest& request = requests_[slot_of(action.id)];
    placers_->running(action.id, TokenCount{request.prompt + request.generated}, queue_.now());
  }
  if (scenario_.speed == SimulationSpeed::kFast && !reporting_) {
    reporting_ = true;
    queue_.after(scenario_.report_interval, EventKind::kReport);
  }
}

void Simulation::on(const cluster::Abort& action) {
  SimRequest* request = find(action.id);
  if (request != nullptr && action.place.role == model::Role::kPrefill) {
    ++request->prefill_pass;
    request->started = false;
    prefill_[action.place.engine.value].remove(action.place.rank, action.id);
  } else if (request != nullptr && action.place.role == model::Role::kDecode) {
    if (placers_ != nullptr) placers_->ended_there(action.id, queue_.now());
    if (request->decode == action.place.rank_id()) {
      result_.moves += request->running ? 1 : 0;  // no client leaves here
      ++request->decode_pass;
      decode_[action.place.engine.value].remove(slot_of(action.id));
    }
  } else if (action.place.role == model::Role::kVision) {
    encoders_.abort(action.place.encoder_id(), action.id);
  }
  told_.push_back(cluster::Released{action.place, action.id, 0});
}

void Simulation::on(const cluster::Deliver& action) {
  SimRequest* request = find(action.id);
  if (request == nullptr) return;
  if (request->first_token.value == 0) {
    request->first_token = queue_.now();
    if (recorder_ != nullptr) recorder_->first_token(slot_of(action.id), queue_.now());
  }
  request->last_token = queue_.now();
  result_.output_tokens += action.count;
  if (placers_ != nullptr && request->running) placers_->grew_there(action.id, action.count, queue_.now());
}

/// Against the tier's target and the request's own work: what it takes alone, in steps of the budget.
bool Simulation::served_well(const SimRequest& request, std::size_t tier) const {
  const TokenCount hit{request.first_hit}, prompt{request.prompt};
  const Nanos budget{scenario_.cluster.prefill.step_budget_ms * 1'000'000};
  const std::int64_t steps = 1 + cost_.request(hit, prompt).value / std::max<std::int64_t>(budget.value, 1);
  const Nanos own = cost_.whole(prompt - hit, hit, prompt) + Nanos{cost_.step_fixed().value * steps};
  const Nanos target = scenario_.slo_targets[std::min(tier, scenario_.slo_targets.size() - 1)];
  const Nanos took = scaled(own, cost_factor(scenario_, request.id));
  const double limit =
      static_cast<double>(target.value) + scenario_.slo_work * static_cast<double>(took.value);
  return static_cast<double>((request.first_token - request.submitted).value) <= limit;
}

/// Decode ranks write each block that the answer fills. The pool knows those whose ids the trace has; the
/// token drawn last was never computed. How long the answer was says when the conversation may go on.
void Simulation::store_answer(std::uint32_t slot, std::int64_t output) {
  const std::int64_t block = workload_.trace().block_tokens;
  if (block <= 0 || !scenario_.pool.enabled) return;
  const SimRequest& request = requests_[slot];
  const std::int64_t prompt = request.prompt;
  workload_.runs(items_[slot], runs_);
  const Pool::Told told{request.matched_blocks, request.matched_at, request.stored_at};
  pool_.answered(runs_, prompt / block, told, output, queue_.now());
  const std::int64_t blocks = (prompt + output - 1) / block;
  if (blocks <= prompt / block) return;
  std::int64_t known = 0;
  for (const model::BlockRun& run : workload_.trace().runs_of(workload_.request(items_[slot])))
    known += run.count;
  if (known <= prompt / block) return;
  pool_.store(runs_, blocks, queue_.now());
  pool_.answered(runs_, blocks, {prompt / block, queue_.now(), queue_.now()}, output, queue_.now());
}

void Simulation::on(const cluster::Finish& action) {
  const std::uint32_t slot = slot_of(action.id);
  const SimRequest& request = requests_[slot];
  store_answer(slot, action.output.value);
  ++result_.finished;
  if (placers_ != nullptr) placers_->ended_there(action.id, queue_.now());
  if (recorder_ != nullptr) recorder_->ended(slot, action.output.value, queue_.now());
  result_.hit_tokens += request.first_hit;
  result_.matched_tokens += request.prompt;
  const std::vector<std::int64_t>& bounds = scenario_.report_bounds_tokens;
  const auto tier =
      static_cast<std::size_t>(std::ranges::upper_bound(bounds, request.prompt) - bounds.begin());
  const bool well = served_well(request, tier);
  for (Latencies* of : {&result_.all, &result_.tiers[tier]}) {
    of->served_well += well ? 1 : 0;
    of->ttft.add(request.first_token - request.submitted);
    of->end_to_end.add(request.last_token - request.submitted);
    if (action.output.value > 1) {
      of->tpot.add(Nanos{(request.last_token - request.first_token).value / (action.output.value - 1)});
    }
  }
  if (scenario_.keep_requests) {
    result_.requests.push_back({items_[slot].request, items_[slot].repeat, request.submitted,
                                request.first_token, request.last_token, request.prompt, request.first_hit,
                                action.output.value});
  }
  end(slot);
}

void Simulation::on(const cluster::Fail& action) {
  if (placers_ != nullptr) placers_->ended_there(action.id, queue_.now());
  if (recorder_ != nullptr) recorder_->ended(slot_of(action.id), 0, queue_.now());
  fail_in_words(action.message);
  end(slot_of(action.id));
}

}  // namespace trimtab::sim
