#include "sim/prefill_group.h"

#include <algorithm>
#include <utility>

#include "sim/step_overlap.h"

namespace trimtab::sim {

PrefillGroup::PrefillGroup(EngineId engine, const model::Scenario& scenario, Host& host)
    : engine_(engine),
      scenario_(scenario),
      host_(host),
      cost_(scenario.profile.cost, scenario.cluster.prefill.quota_scope),
      composes_(scenario.cluster.prefill.compose == "two_budgets"),
      rank_config_(policy::RankConfig::from(scenario.cluster.prefill)),
      long_(std::make_unique<policy::ContextParallelQueue>(scenario.cluster.prefill,
                                                           scenario.cluster.prefill.ranks, cost_)) {
  for (std::uint32_t r = 0; r < scenario.cluster.prefill.ranks; ++r) {
    ranks_.push_back({policy::RankScheduler(rank_config_, cost_), {}, {}, {}});
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
  work.spreads =
      policy::context_parallel(scenario_.cluster.prefill, cost_.request(work.computed, work.prompt));
  if (work.spreads && !composes_) {
    long_ranks_[work.id] = rank;
    long_->add(std::move(work));
  } else {
    ranks_[rank].scheduler.add(std::move(work));
  }
  if (!stepping_) begin();
}

void PrefillGroup::remove(std::uint32_t rank, RequestId id) {
  ranks_[rank].scheduler.remove(id);
  long_->remove(id);
  long_ranks_.erase(id);
}

namespace {

double tokens_of(const policy::StepPlan& plan) {
  std::int64_t sum = 0;
  for (const policy::PlannedChunk& chunk : plan.chunks) sum += chunk.tokens.value;
  return static_cast<double>(sum);
}

}  // namespace

void PrefillGroup::begin() {
  const bool others =
      std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.scheduler.waiting() > 0; });
  if (!others && long_->waiting() == 0) return;
  std::vector<Nanos> votes;
  for (Rank& rank : ranks_) {
    rank.vote = rank.scheduler.vote();
    votes.push_back(rank.vote.vote);
  }
  budget_ = long_->waiting() > 0 ? rank_config_.step_budget : policy::agree(votes, rank_config_);
  const std::vector<Load> together = composes_ ? compose() : plan_fifo(others);
  Nanos attention, rest, fullest;
  double attention_sum = 0, rest_sum = 0, tokens = tokens_of(long_plan_), tokens_most = 0;
  for (const policy::HelpChunk& help : helps_) tokens += static_cast<double>(help.chunk.tokens.value);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const Load own = load_of(rank.plan), all = own + together[r];
    tokens += tokens_of(rank.plan);
    tokens_most = std::max(tokens_most, tokens_of(rank.plan));
    rank.own = cost_.step_fixed() + own.attention + own.rest;
    fullest = std::max(fullest, all.attention + all.rest);
    work_ns_ += static_cast<double>((own.attention + own.rest).value);
    attention = std::max(attention, all.attention);
    rest = std::max(rest, all.rest);
    attention_sum += static_cast<double>(all.attention.value);
    rest_sum += static_cast<double>(all.rest.value);
  }
  // All that is here may wait for embeddings: the next thing that can be computed begins the step.
  if (long_plan_.chunks.empty() && helps_.empty() &&
      std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.plan.chunks.empty(); })) {
    return;
  }
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
  if (scenario_.overlap.enabled) {
    const double batch = tokens_most + tokens_of(long_plan_) / ranks;
    overlap(times, attention, static_cast<double>(rest.value) * load.balance, batch);
  }
  times_.add(times);
  uneven_ns_ += static_cast<double>(fullest.value) - (attention_sum + rest_sum) / ranks;
  actual_ = std::max(times.whole(), Nanos{1});
  stepping_ = true;
  began_ = host_.queue().now();
  ++step_;
  busy_ += actual_;
  step_ends_ = host_.queue().now() + actual_;
  record(times);
  host_.queue().after(actual_, EventKind::kPrefillStep, engine_.value, ++version_);
}

/// Two micro-batches where they pay, of the tokens of the rank that has most.
void PrefillGroup::overlap(StepTimes& times, Nanos attention, double rest_ns, double tokens) const {
  OverlapParts parts;
  parts.attention = static_cast<double>(attention.value);
  parts.network = std::min(scenario_.overlap.prefill_network_ns_per_token * tokens, rest_ns);
  parts.experts = rest_ns - parts.network;
  parts.experts_least =
      std::min(expert_weights_ns(scenario_, static_cast<double>(ranks_.size())), parts.experts);
  save(times, overlap_saving(parts, tokens, moe_layers(scenario_), policy::kPrefillCosts));
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
  std::vector<RequestId> done;
  finish_long(done);
  merge_helps();
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].plan.chunks.empty()) report(r);
  }
  for (const RequestId id : done) computed(id);
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
    chunk_done(chunk, std::ranges::find(done, chunk.id) != done.end());
    event.chunks.push_back({chunk.id, chunk.tokens, chunk.computed, chunk.predicted});
  }
  host_.tell(std::move(event));
  for (const RequestId id : done) computed(id);
}

/// Its KV has gone layer by layer, and with the first chunk's that of the hit; the last chunk's goes at the
/// hand-over.
void PrefillGroup::chunk_done(const policy::PlannedChunk& chunk, bool last) {
  SimRequest& request = host_.request(Host::slot_of(chunk.id));
  tokens_computed_ += chunk.tokens.value;
  request.last_chunk = chunk.tokens.value;
  MachineLinks* links = host_.links();
  if (links == nullptr || !request.hand_over || request.id != chunk.id) return;
  const std::int64_t hit = chunk.computed.value == request.hit ? request.hit : 0;
  const std::int64_t tokens = hit + (last ? 0 : chunk.tokens.value);
  links->sent_earlier(request.prefill, static_cast<double>(tokens) * kv_bytes_per_token(scenario_),
                      host_.queue().now());
}

/// All of the prompt is there.
void PrefillGroup::computed(RequestId id) {
  SimRequest& request = host_.request(Host::slot_of(id));
  if (request.id != id || !request.started) return;  // aborted while it was computed
  request.computed = true;
  if (request.target || !request.hand_over) hand_over(Host::slot_of(id));
}

/// Layer by layer under the compute: what is left to send at the end is the last chunk's.
Nanos PrefillGroup::transfer(const SimRequest& request) {
  const double bytes = static_cast<double>(request.last_chunk) * kv_bytes_per_token(scenario_);
  const Nanos alone{static_cast<std::int64_t>(bytes / scenario_.network.hand_over_bytes_per_s * 1e9)};
  MachineLinks* links = host_.links();
  if (links == nullptr) return alone;
  const Nanos now = host_.queue().now();
  const MachineLinks::Transfer way = links->hand_over(request.prefill, request.decode, bytes, now);
  // The decode machine is known only now; what it has received until here goes on its link behind.
  const double earlier =
      static_cast<double>(request.tokens - request.last_chunk) * kv_bytes_per_token(scenario_);
  links->received_earlier(request.decode, earlier, now);
  return std::max(way.ends, way.begins + alone) - now;
}

void PrefillGroup::hand_over(std::uint32_t slot) {
  const SimRequest& request = host_.request(slot);
  EventQueue& queue = host_.queue();
  Nanos span = scenario_.network.message;
  if (request.hand_over) {
    span += transfer(request);
  }
  queue.at(std::max(queue.now() + span, request.read_until), EventKind::kHandedOver, slot,
           request.prefill_pass);
}

}  // namespace trimtab::sim
