#include "queue/assigned_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "queue/embedded_queue.h"

namespace trimtab::queue {

using base::Nanos;
using model::EngineId;
using model::RequestId;

base::Result<std::unique_ptr<cluster::TierQueue>> make_queue(const model::PrefillConfig& config,
                                                             std::uint64_t seed) {
  return config.assignment == "pull" ? EmbeddedQueue::make(config) : AssignedQueue::make(config, seed);
}

base::Result<std::unique_ptr<cluster::TierQueue>> AssignedQueue::make(const model::PrefillConfig& config,
                                                                      std::uint64_t seed) {
  const auto rule = policy::prefill_assignment(config.assignment);
  if (!rule) return tl::unexpected<base::Error>(rule.error());
  if (*rule == policy::PrefillAssignment::kPull) {
    return base::fail(base::Code::kInvalidArgument, "assignment \"pull\" is the embedded queue's", "queue");
  }
  auto map = policy::TierMap::make(config.tier_bounds_tokens);
  if (!map) return tl::unexpected<base::Error>(map.error());
  return std::unique_ptr<cluster::TierQueue>(new AssignedQueue(
      config, std::move(*map), policy::PrefillAssigner(*rule, seed, config.dualpath_ceiling_tokens)));
}

AssignedQueue::AssignedQueue(const model::PrefillConfig& config, policy::TierMap map,
                             policy::PrefillAssigner assigner)
    : ranks_per_engine_(config.ranks),
      lease_(Nanos{config.lease_ms * 1'000'000}),
      batch_cap_(Nanos{config.step_budget_ms * 1'000'000}),
      map_(std::move(map)),
      assigner_(std::move(assigner)),
      loads_(static_cast<std::size_t>(config.engines) * config.ranks),
      offers_(loads_.size(), policy::RankOffer{Nanos{}, 0}),
      fifos_(loads_.size()),
      depth_(map_.size()),
      quota_(map_.size()),
      arrived_(map_.size()) {}

void AssignedQueue::count(const policy::QueueItem& item, int sign) {
  const std::uint32_t tier = map_.tier_of(item.context).value;
  depth_[tier] += static_cast<std::size_t>(sign);
  quota_[tier] += Nanos{sign * item.quota.value};
}

/// Gives queued work to a rank, or lets it wait for one.
void AssignedQueue::place(RequestId id) {
  Entry& entry = entries_.at(id);
  const auto rank =
      assigner_.rule() == policy::PrefillAssignment::kDualPath ? std::nullopt : assigner_.choose(loads_);
  if (!rank) {
    entry.rank = UINT32_MAX;
    waiting_.push_back(id);
    return;
  }
  give(entry, *rank);
}

/// Into the rank's FIFO, and on its account.
void AssignedQueue::give(Entry& entry, std::uint32_t rank) {
  entry.rank = rank;
  loads_[rank].requests += 1;
  loads_[rank].tokens += entry.item.context.value;
  loads_[rank].work += entry.item.quota;
  fifos_[rank].push_back(entry.item.id);
  ready_.insert(rank);
}

policy::EnqueueDecision AssignedQueue::push(const policy::QueueItem& item) {
  const bool fresh = entries_.emplace(item.id, Entry{item, UINT32_MAX, std::nullopt}).second;
  TRIMTAB_CHECK(fresh, "queued twice");
  count(item, 1);
  const model::TierId tier = map_.tier_of(item.context);
  arrived_[tier.value] += item.quota;
  place(item.id);
  return {tier, item.arrival, depth_[tier.value], quota_[tier.value]};
}

void AssignedQueue::pull(EngineId engine, std::span<const policy::RankOffer> ranks) {
  for (std::uint32_t r = 0; r < ranks.size() && r < ranks_per_engine_; ++r)
    offers_[index(engine, r)] = ranks[r];
}

void AssignedQueue::withdraw(EngineId engine) {
  for (std::uint32_t r = 0; r < ranks_per_engine_; ++r) offers_[index(engine, r)] = {Nanos{}, 0};
}

std::optional<policy::Grant> AssignedQueue::next(Nanos now) {
  // Work that waits for any rank: the oldest goes to the rank that the rule names now.
  while (!waiting_.empty()) {
    const auto rank = assigner_.choose(loads_);
    if (!rank) break;
    give(entries_.at(waiting_.front()), *rank);
    waiting_.pop_front();
  }
  for (const std::uint32_t rank : ready_) {
    policy::RankOffer& offer = offers_[rank];
    Entry& entry = entries_.at(fifos_[rank].front());
    if (offer.quota_left.value <= 0 || entry.item.blocks > offer.blocks_free) continue;
    policy::Grant grant;
    grant.item = entry.item;
    grant.tier = map_.tier_of(entry.item.context);
    grant.engine = EngineId{rank / ranks_per_engine_};
    grant.rank = rank % ranks_per_engine_;
    grant.key = entry.item.arrival;
    grant.queue_time = now - entry.item.arrival;
    for (std::uint32_t r = 0; r < ranks_per_engine_; ++r) {
      const Nanos left = offers_[index(grant.engine, r)].quota_left;
      grant.ranks_left.push_back(left);
      grant.engine_left += std::max(left, Nanos{});
    }
    grant.batch_cap = batch_cap_;
    grant.lease_until = now + lease_;
    offer.quota_left -= entry.item.quota;
    offer.blocks_free -= entry.item.blocks;
    entry.lease_until = grant.lease_until;
    leases_.emplace(grant.lease_until, entry.item.id);
    count(entry.item, -1);
    fifos_[rank].pop_front();
    if (fifos_[rank].empty()) ready_.erase(rank);
    return grant;
  }
  return std::nullopt;
}

/// Off its rank's account and out of whatever list it is in.
void AssignedQueue::take_off(Entry& entry) {
  const RequestId id = entry.item.id;
  if (entry.lease_until) {
    leases_.erase({*entry.lease_until, id});
  } else {
    count(entry.item, -1);
    std::deque<RequestId>& list = entry.rank == UINT32_MAX ? waiting_ : fifos_[entry.rank];
    list.erase(std::ranges::find(list, id));
    if (entry.rank != UINT32_MAX && list.empty()) ready_.erase(entry.rank);
  }
  entry.lease_until.reset();
  if (entry.rank == UINT32_MAX) return;
  loads_[entry.rank].requests -= 1;
  loads_[entry.rank].tokens -= entry.item.context.value;
  loads_[entry.rank].work -= entry.item.quota;
}

bool AssignedQueue::ack(RequestId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  take_off(found->second);
  entries_.erase(found);
  return true;
}

policy::Returned AssignedQueue::give_back(RequestId id) {
  Entry& entry = entries_.at(id);
  const EngineId engine{entry.rank / ranks_per_engine_};
  take_off(entry);
  count(entry.item, 1);
  place(id);
  return {entry.item, engine};
}

bool AssignedQueue::nack(RequestId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.lease_until) return false;
  give_back(id);
  return true;
}

bool AssignedQueue::extend(RequestId id, Nanos now) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.lease_until) return false;
  leases_.erase({*found->second.lease_until, id});
  found->second.lease_until = now + lease_;
  leases_.emplace(now + lease_, id);
  return true;
}

std::vector<policy::Returned> AssignedQueue::expire(Nanos now) {
  std::vector<policy::Returned> returned;
  while (!leases_.empty() && leases_.begin()->first <= now)
    returned.push_back(give_back(leases_.begin()->second));
  return returned;
}

std::vector<policy::Returned> AssignedQueue::lose(EngineId engine) {
  std::vector<RequestId> leased, queued;
  for (std::uint32_t r = 0; r < ranks_per_engine_; ++r) {
    const std::uint32_t rank = index(engine, r);
    loads_[rank].open = false;
    offers_[rank] = {Nanos{}, 0};
    queued.insert(queued.end(), fifos_[rank].begin(), fifos_[rank].end());
  }
  for (const auto& [until, id] : leases_) {
    if (entries_.at(id).rank / ranks_per_engine_ == engine.value) leased.push_back(id);
  }
  std::vector<policy::Returned> returned;
  for (const RequestId id : leased) returned.push_back(give_back(id));
  for (const RequestId id : queued) give_back(id);
  return returned;
}

Nanos AssignedQueue::next_event(Nanos) const {
  return leases_.empty() ? base::kForever : leases_.begin()->first;
}

void AssignedQueue::assign(std::span<const policy::EngineTiers> engines) {
  for (policy::AssignedLoad& load : loads_) load.open = false;
  for (const policy::EngineTiers& engine : engines) {
    for (std::uint32_t r = 0; r < ranks_per_engine_; ++r) loads_[index(engine.engine, r)].open = true;
  }
}

std::vector<Nanos> AssignedQueue::close_round() {
  std::vector<Nanos> demand = arrived_;
  for (std::size_t tier = 0; tier < demand.size(); ++tier) demand[tier] += quota_[tier];
  std::ranges::fill(arrived_, Nanos{});
  return demand;
}

}  // namespace trimtab::queue
