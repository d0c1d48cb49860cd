#include "sim/prefill_group.h"

#include <algorithm>
#include <utility>

namespace trimtab::sim {

PrefillGroup::PrefillGroup(EngineId engine, const model::Scenario& scenario, Host& host)
    : engine_(engine),
      scenario_(scenario),
      host_(host),
      cost_(scenario.profile.cost, scenario.cluster.prefill.quota_scope) {
  const policy::RankConfig config = policy::RankConfig::from(scenario.cluster.prefill);
  for (std::uint32_t r = 0; r < scenario.cluster.prefill.ranks; ++r) {
    ranks_.push_back({policy::RankScheduler(config, cost_), {}, {}, {}});
  }
  if (scenario.experts.policy != model::ExpertPolicy::kConstant) {
    experts_.emplace(scenario, scenario.experts.prefill, scenario.cluster.prefill.ranks,
                     0x9ef111ULL << 32U | engine.value);
  }
}

ExpertLoad PrefillGroup::expert_load(double tokens) {
  if (!experts_) return {scenario_.prefill.expert_balance, 0, 0};
  if (scenario_.speed == SimulationSpeed::kExact) return experts_->step(tokens);
  const ExpertLoad load = experts_->expected(tokens);
  experts_->advance(1, tokens);
  return load;
}

void PrefillGroup::join() {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    host_.tell(cluster::Joined{{model::Role::kPrefill, engine_, r}, scenario_.cluster.prefill.kv_blocks});
  }
}

void PrefillGroup::add(std::uint32_t rank, std::uint32_t slot) {
  const SimRequest& request = host_.request(slot);
  policy::RankRequest work;
  work.id = request.id;
  work.prompt = TokenCount{request.tokens};
  work.computed = TokenCount{request.hit};
  work.batch_cap = request.batch_cap;
  work.images = request.images;
  work.ready = request.ready;
  ranks_[rank].scheduler.add(std::move(work));
  if (!stepping_) begin();
}

void PrefillGroup::remove(std::uint32_t rank, RequestId id) { ranks_[rank].scheduler.remove(id); }

void PrefillGroup::begin() {
  const bool idle =
      std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.scheduler.waiting() == 0; });
  if (idle) return;
  budget_ = base::kForever;
  for (Rank& rank : ranks_) {
    rank.vote = rank.scheduler.vote();
    budget_ = std::min(budget_, rank.vote.vote);
  }
  Nanos attention, rest;
  double attention_sum = 0, rest_sum = 0, tokens = 0;
  for (Rank& rank : ranks_) {
    rank.plan = rank.scheduler.plan(budget_);
    Nanos own_attention, own_rest;
    for (const policy::PlannedChunk& chunk : rank.plan.chunks) {
      const TokenCount prompt{host_.request(Host::slot_of(chunk.id)).tokens};
      const Nanos part = cost_.attention(chunk.tokens, chunk.computed, prompt);
      own_attention += part;
      tokens += static_cast<double>(chunk.tokens.value);
      own_rest += cost_.whole(chunk.tokens, chunk.computed, prompt) - part;
    }
    rank.own = cost_.step_fixed() + own_attention + own_rest;
    attention = std::max(attention, own_attention);
    rest = std::max(rest, own_rest);
    attention_sum += static_cast<double>(own_attention.value);
    rest_sum += static_cast<double>(own_rest.value);
  }
  // All that is here may wait for embeddings: the next thing that can be computed begins the step.
  if (std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.plan.chunks.empty(); })) return;
  const auto ranks = static_cast<double>(ranks_.size());
  StepTimes times;
  times.ideal = static_cast<double>(cost_.step_fixed().value) + (attention_sum + rest_sum) / ranks;
  times.attention_wait = static_cast<double>(attention.value) - attention_sum / ranks;
  times.batch_wait = static_cast<double>(rest.value) - rest_sum / ranks;
  // Redundant copies are read under the arithmetic of so many tokens: no time of their own.
  const ExpertLoad load = expert_load(tokens);
  times.expert_imbalance = static_cast<double>(rest.value) * (load.balance - load.avoidable - 1.0);
  times.expert_drift = static_cast<double>(rest.value) * load.avoidable;
  times.expert_moves = load.stall_ns;
  times_.add(times);
  actual_ = std::max(times.whole(), Nanos{1});
  stepping_ = true;
  ++step_;
  busy_ += actual_;
  record(times);
  host_.queue().after(actual_, EventKind::kPrefillStep, engine_.value, ++version_);
}

void PrefillGroup::record(const StepTimes& times) const {
  Recorder* recorder = host_.recorder();
  if (recorder == nullptr) return;
  std::vector<Nanos> worked;
  std::int64_t requests = 0;
  for (const Rank& rank : ranks_) {
    worked.push_back(rank.plan.chunks.empty() ? Nanos{} : rank.own);
    requests += static_cast<std::int64_t>(rank.plan.chunks.size());
  }
  recorder->prefill_step(engine_.value, step_, host_.queue().now(), actual_, times, worked, requests);
}

void PrefillGroup::step_ended(std::uint64_t version) {
  if (version != version_ || !stepping_) return;
  stepping_ = false;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].plan.chunks.empty()) report(r);
  }
  if (!stepping_) begin();
}

void PrefillGroup::report(std::uint32_t r) {
  Rank& rank = ranks_[r];
  const policy::StepPlan plan = std::exchange(rank.plan, {});
  const std::vector<RequestId> done = rank.scheduler.done(plan, rank.own);
  cluster::PrefillStepped event;
  event.from = {engine_, r};
  event.step = step_;
  event.vote = rank.vote.vote;
  event.budget = budget_;
  event.predicted = plan.predicted;
  event.actual = actual_;
  event.waiting = static_cast<std::uint32_t>(rank.scheduler.waiting());
  event.chunks.reserve(plan.chunks.size());
  for (const policy::PlannedChunk& chunk : plan.chunks) {
    tokens_computed_ += chunk.tokens.value;
    host_.request(Host::slot_of(chunk.id)).last_chunk = chunk.tokens.value;
    event.chunks.push_back({chunk.id, chunk.tokens, chunk.computed, chunk.predicted});
  }
  host_.tell(std::move(event));
  for (const RequestId id : done) {
    SimRequest& request = host_.request(Host::slot_of(id));
    if (request.id != id || !request.started) continue;  // aborted while it was computed
    request.computed = true;
    if (request.target || !request.hand_over) hand_over(Host::slot_of(id));
  }
}

void PrefillGroup::hand_over(std::uint32_t slot) {
  const SimRequest& request = host_.request(slot);
  EventQueue& queue = host_.queue();
  Nanos span = scenario_.network.message;
  if (request.hand_over) {
    // Layer by layer under the compute: what is left to send at the end is the last chunk's.
    const double bytes = static_cast<double>(request.last_chunk) * kv_bytes_per_token(scenario_);
    span += Nanos{static_cast<std::int64_t>(bytes / scenario_.network.hand_over_bytes_per_s * 1e9)};
  }
  queue.at(std::max(queue.now() + span, request.read_until), EventKind::kHandedOver, slot,
           request.prefill_pass);
}

}  // namespace trimtab::sim
