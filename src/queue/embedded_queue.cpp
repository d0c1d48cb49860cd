#include "queue/embedded_queue.h"

namespace trimtab::queue {

using base::Nanos;
using model::EngineId;
using model::RequestId;

base::Result<std::unique_ptr<cluster::TierQueue>> EmbeddedQueue::make(const model::PrefillConfig& config) {
  auto queues = policy::PrefillQueues::make(policy::QueueConfig::from(config));
  if (!queues) return tl::unexpected(std::move(queues).error());
  return std::unique_ptr<cluster::TierQueue>(new EmbeddedQueue(std::move(*queues)));
}

policy::EnqueueDecision EmbeddedQueue::push(const policy::QueueItem& item) { return queues_.enqueue(item); }

void EmbeddedQueue::pull(EngineId engine, std::span<const policy::RankOffer> ranks) {
  queues_.pull(engine, ranks);
}

void EmbeddedQueue::withdraw(EngineId engine) { queues_.withdraw(engine); }

std::optional<policy::Grant> EmbeddedQueue::next(Nanos now) {
  auto grant = queues_.serve(now);
  if (grant) leases_.emplace(grant->item.id, grant->item);
  return grant;
}

bool EmbeddedQueue::ack(RequestId id) {
  leases_.erase(id);
  return queues_.remove(id);
}

bool EmbeddedQueue::nack(RequestId id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end()) return false;
  const policy::QueueItem item = lease->second;
  leases_.erase(lease);
  queues_.remove(id);
  queues_.enqueue(item);  // its arrival is the old one, so its place is too
  return true;
}

bool EmbeddedQueue::extend(RequestId id, Nanos now) { return queues_.renew(id, now); }

std::vector<policy::Returned> EmbeddedQueue::expire(Nanos now) {
  auto returned = queues_.expire(now);
  for (const policy::Returned& one : returned) leases_.erase(one.item.id);
  return returned;
}

std::vector<policy::Returned> EmbeddedQueue::lose(EngineId engine) {
  auto returned = queues_.lose_engine(engine);
  for (const policy::Returned& one : returned) leases_.erase(one.item.id);
  return returned;
}

Nanos EmbeddedQueue::next_event(Nanos now) const { return queues_.next_event(now); }

void EmbeddedQueue::assign(std::span<const policy::EngineTiers> engines) { queues_.set_engines(engines); }

std::vector<Nanos> EmbeddedQueue::close_round() { return queues_.close_round(); }

std::uint32_t EmbeddedQueue::tiers() const { return queues_.tiers().size(); }

model::TierId EmbeddedQueue::tier_of(base::TokenCount context) const {
  return queues_.tiers().tier_of(context);
}

std::size_t EmbeddedQueue::depth(model::TierId tier) const { return queues_.depth(tier); }

Nanos EmbeddedQueue::queued_quota(model::TierId tier) const { return queues_.queued_quota(tier); }

std::size_t EmbeddedQueue::queued() const { return queues_.queued(); }

std::size_t EmbeddedQueue::leased() const { return queues_.leased(); }

}  // namespace trimtab::queue
