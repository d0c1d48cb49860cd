// What a fault plan does to the cluster: engines leave and come, the queue stops, entrypoints break.
#include <fmt/format.h>

#include <algorithm>

#include "sim/simulation.h"

namespace trimtab::sim {

using cluster::Place;
using model::FaultKind;
using model::Role;

namespace {

constexpr Nanos kEmptyPoll{100'000'000};
constexpr Nanos kPatience{3'600'000'000'000};

}  // namespace

/// Encoders stand alone; the ranks of a group are one member.
std::uint32_t Simulation::member(Role role, std::uint32_t engine, std::uint32_t rank) const {
  const model::ClusterConfig& cluster = scenario_.cluster;
  if (role == Role::kPrefill) return engine;
  if (role == Role::kDecode) return cluster.prefill.engines + engine;
  return cluster.prefill.engines + cluster.decode.groups + engine * cluster.vision.encoders + rank;
}

/// The ranks [first, last) that a fault of `rank` takes away as members of their own: of a group, one.
std::pair<std::uint32_t, std::uint32_t> Simulation::members_of(Role role, std::uint32_t /*engine*/,
                                                               std::uint32_t rank) const {
  if (role != Role::kVision) return {0, 1};
  if (rank == Strike::kAllRanks) return {0, scenario_.cluster.vision.encoders};
  return {rank, rank + 1};
}

void Simulation::start() {
  const model::ClusterConfig& cluster = scenario_.cluster;
  members_.resize(member(Role::kVision, cluster.vision.machines, 0));
  for (const Strike& absent : schedule_.absent()) {
    const auto [first, last] = members_of(absent.role, absent.target, absent.rank);
    for (std::uint32_t r = first; r < last; ++r) ++members_[member(absent.role, absent.target, r)].faults;
  }
  for (std::uint32_t index = 0; index < members_.size(); ++index) {
    if (members_[index].faults == 0) joined(index, 0);
  }
  schedule_.start(queue_);
}

void Simulation::fault(const QueuedEvent& event) {
  switch (event.b) {
    case FaultSchedule::kBegins:
      strike(schedule_.begin(event.a, queue_));
      if (schedule_.strike(event.a).kind == FaultKind::kDrain)
        queue_.at(queue_.now(), EventKind::kFault, event.a, FaultSchedule::kEmpty);
      break;
    case FaultSchedule::kEnds:
      over(schedule_.strike(event.a));
      schedule_.end(event.a, queue_);
      break;
    default:
      leave_when_empty(event.a);
      break;
  }
}

void Simulation::strike(const Strike& strike) {
  if (recorder_ != nullptr && strike.kind != FaultKind::kLateStart)
    recorder_->fault_began({strike.kind, strike.role, strike.target, queue_.now()});
  switch (strike.kind) {
    case FaultKind::kRank:
    case FaultKind::kEngine:
      away(strike.role, strike.target, strike.rank, true);
      break;
    case FaultKind::kStorageNode:
      lose_storage(strike);
      break;
    case FaultKind::kEntrypoint:
      ++result_.faults.entrypoints_lost;
      if (entrypoints_down_[strike.target]++ == 0) lose_entrypoint(strike.target);
      break;
    case FaultKind::kQueue:
      ++result_.faults.queue_stops;
      if (queue_down_++ == 0) gate_->set_down(true);
      break;
    case FaultKind::kDrain:
      drain(strike, true);
      break;
    case FaultKind::kLateStart:
      break;
  }
}

void Simulation::over(const Strike& strike) {
  if (recorder_ != nullptr)
    recorder_->fault_over({strike.kind, strike.role, strike.target, {}, queue_.now() + strike.start_up});
  switch (strike.kind) {
    case FaultKind::kRank:
    case FaultKind::kEngine:
    case FaultKind::kLateStart:
      back(strike.role, strike.target, strike.rank, strike.start_up);
      break;
    case FaultKind::kStorageNode:
      pool_.restore(strike.target, strike.loses_content, queue_.now());
      break;
    case FaultKind::kEntrypoint:
      --entrypoints_down_[strike.target];
      break;
    case FaultKind::kQueue:
      if (--queue_down_ > 0) break;
      gate_->set_down(false);
      tell(cluster::Timer{});  // what waited is served
      break;
    case FaultKind::kDrain:
      drain(strike, false);
      break;
  }
}

/// The members that a fault concerns are gone, each as often as faults hold it.
void Simulation::away(Role role, std::uint32_t engine, std::uint32_t rank, bool lost) {
  const auto [first, last] = members_of(role, engine, rank);
  for (std::uint32_t r = first; r < last; ++r) {
    Member& gone = members_[member(role, engine, r)];
    ++gone.version;  // a start under way is over
    if (gone.faults++ > 0 || !gone.there) continue;
    gone.there = false;
    gone.gone = queue_.now();
    ++(lost ? result_.faults.engines_lost : result_.faults.engines_drained);
    take_away(role, engine, role == Role::kVision ? r : (rank == Strike::kAllRanks ? 0 : rank));
  }
}

/// The engine first, so that nothing of it is heard after the machine was told. The rank that died is the
/// first to be lost; its peers, stuck in their step, are restarted with it.
void Simulation::take_away(Role role, std::uint32_t engine, std::uint32_t rank) {
  std::vector<cluster::Event> lost{cluster::Lost{{role, EngineId{engine}, rank}}};
  if (role == Role::kVision) {
    encoders_.lose(engine, rank);
    return tell_all(std::move(lost));
  }
  const bool prefill = role == Role::kPrefill;
  const std::uint32_t ranks = prefill ? scenario_.cluster.prefill.ranks : scenario_.cluster.decode.ranks;
  if (prefill) {
    prefill_[engine].lose();
  } else {
    decode_[engine].lose();
    if (placers_ != nullptr) placers_->lost(EngineId{engine}, ranks);
  }
  for (SimRequest& request : requests_) {
    if (!request.live) continue;
    if (prefill && request.started && request.prefill.engine.value == engine) {
      ++request.prefill_pass;
      request.started = false;
      prefill_[engine].remove(request.prefill.rank, request.id);
    } else if (!prefill && request.reserved && request.decode.engine.value == engine) {
      ++request.decode_pass;
      request.reserved = false;
    }
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r != rank) lost.push_back(cluster::Lost{{role, EngineId{engine}, r}});
  }
  tell_all(std::move(lost));
}

/// All of them before anything that follows from the first: one connection after the other ends, at one
/// instant.
void Simulation::tell_all(std::vector<cluster::Event> events) {
  for (std::size_t i = 0; i + 1 < events.size(); ++i) told_.push_back(std::move(events[i]));
  tell(std::move(events.back()));
}

void Simulation::back(Role role, std::uint32_t engine, std::uint32_t rank, Nanos start_up) {
  const auto [first, last] = members_of(role, engine, rank);
  for (std::uint32_t r = first; r < last; ++r) {
    const std::uint32_t index = member(role, engine, r);
    Member& back = members_[index];
    if (--back.faults > 0 || back.there) continue;
    queue_.after(start_up, EventKind::kJoin, index, ++back.version);
  }
}

void Simulation::joined(std::uint32_t index, std::uint64_t version) {
  Member& member = members_[index];
  if (member.version != version || member.there) return;
  member.there = true;
  if (version > 0) {
    ++result_.faults.engines_joined;
    result_.faults.engine_down += queue_.now() - member.gone;
  }
  const model::ClusterConfig& cluster = scenario_.cluster;
  std::uint32_t at = index;
  if (at < cluster.prefill.engines) return prefill_[at].join();
  at -= cluster.prefill.engines;
  if (at < cluster.decode.groups) return decode_[at].join();
  at -= cluster.decode.groups;
  encoders_.join(at / cluster.vision.encoders, at % cluster.vision.encoders);
}

void Simulation::drain(const Strike& strike, bool on) {
  const auto [first, last] = members_of(strike.role, strike.target, Strike::kAllRanks);
  bool left = false;
  for (std::uint32_t r = first; r < last; ++r) {
    Member& one = members_[member(strike.role, strike.target, r)];
    left = left || (!on && one.draining && !one.there);
    one.draining = on;
  }
  tell(cluster::Drain{strike.role, EngineId{strike.target}, on});
  if (left) back(strike.role, strike.target, Strike::kAllRanks, strike.start_up);
}

/// A draining engine ends its connections once nothing holds anything there.
void Simulation::leave_when_empty(std::uint32_t number) {
  const Strike& strike = schedule_.strike(number);
  const Member& one = members_[member(strike.role, strike.target, 0)];
  if (!one.draining) return;
  if (!one.there) {  // it died before it was empty, and is away as long as the drain lasts
    return away(strike.role, strike.target, Strike::kAllRanks, false);
  }
  for (const cluster::EngineStatus& engine : cluster_->status().engines) {
    if (engine.role != strike.role || engine.engine.value != strike.target) continue;
    const bool empty = std::ranges::all_of(engine.ranks, [](const auto& rank) { return rank.requests == 0; });
    if (empty) return away(strike.role, strike.target, Strike::kAllRanks, false);
  }
  queue_.after(kEmptyPoll, EventKind::kFault, number, FaultSchedule::kEmpty);
}

/// False when requests are left and nothing can happen any more that would take them further: timers go on
/// for ever, and so may random faults.
bool Simulation::serves(const QueuedEvent& event) {
  const bool idle = event.kind == EventKind::kTimer || event.kind == EventKind::kFault ||
                    event.kind == EventKind::kJoin || event.kind == EventKind::kReport ||
                    event.kind == EventKind::kLoadReport;
  if (!idle) {
    served_ = event.at;
    return true;
  }
  const Nanos lease{scenario_.cluster.prefill.lease_ms * 1'000'000};
  if (live_ == 0 || schedule_.expected() > 0 ||
      event.at - served_ <= kPatience + lease + schedule_.longest() + scenario_.reports.delay) {
    return true;
  }
  // Arrivals still to come would have been events of the queue: whoever comes later finds the same.
  if (arriving_.size() != arriving_free_.size()) return true;
  result_.failures.push_back(stuck());
  return false;
}

std::string Simulation::stuck() const {
  std::string serving;
  for (const auto& [role, noun] :
       {std::pair{Role::kPrefill, "prefill engines"}, std::pair{Role::kDecode, "decode groups"},
        std::pair{Role::kVision, "vision machines"}}) {
    std::size_t up = 0, all = 0;
    for (const cluster::EngineStatus& engine : cluster_->status().engines) {
      if (engine.role != role) continue;
      ++all;
      up += engine.serving && !engine.draining ? 1 : 0;
    }
    serving += fmt::format("{}{} of {} {}", serving.empty() ? "" : ", ", up, all, noun);
  }
  return fmt::format("{} requests were left, and nothing can serve them any more: {} take work{}", live_,
                     serving, queue_down_ > 0 ? ", and the queue is down" : "");
}

}  // namespace trimtab::sim
