#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cluster/events.h"
#include "policy/prefill/queues.h"

namespace trimtab::cluster {

/// The work queue of the tiers, in the terms of a work-queue stream with pull consumers: items are pushed,
/// engines pull, what a pull takes is leased, and a lease is acknowledged, given back, extended, or it
/// expires. The cluster machine knows only this, so a queue outside the process can take the embedded one's
/// place (queue/embedded_queue.h).
class TierQueue {
 public:
  virtual ~TierQueue() = default;

  /// The id must not be queued or leased. Work that comes back keeps its first arrival, and with it its place
  /// ahead of all that came later.
  virtual policy::EnqueueDecision push(const policy::QueueItem& item) = 0;
  /// An engine asks with what its ranks can take. Remembered, replaces what it said before.
  virtual void pull(EngineId engine, std::span<const policy::RankOffer> ranks) = 0;
  /// The engine asks for nothing any more.
  virtual void withdraw(EngineId engine) = 0;
  /// The next pairing of work and pull, leased; none when nothing fits.
  virtual std::optional<policy::Grant> next(Nanos now) = 0;

  /// The leased (or queued) item is done with: gone for good. False when it is not here.
  virtual bool ack(RequestId id) = 0;
  /// The leased item goes back to its place in the queue. False when it is not leased.
  virtual bool nack(RequestId id) = 0;
  /// The lease runs from `now` anew. False when it is not leased.
  virtual bool extend(RequestId id, Nanos now) = 0;
  /// Leases that ran out by `now`; their items are queued again.
  virtual std::vector<policy::Returned> expire(Nanos now) = 0;
  /// The engine is gone: its leases come back, its pull is forgotten.
  virtual std::vector<policy::Returned> lose(EngineId engine) = 0;
  /// When the next lease runs out or the next item ages; kForever when nothing does.
  virtual Nanos next_event(Nanos now) const = 0;

  /// Who pulls from which tiers from now on; engines not named are withdrawn.
  virtual void assign(std::span<const policy::EngineTiers> engines) = 0;
  /// Quota demand per tier of the round that ends now.
  virtual std::vector<Nanos> close_round() = 0;

  virtual std::uint32_t tiers() const = 0;
  virtual model::TierId tier_of(TokenCount context) const = 0;
  virtual std::size_t depth(model::TierId tier) const = 0;
  virtual Nanos queued_quota(model::TierId tier) const = 0;
  virtual std::size_t queued() const = 0;
  virtual std::size_t leased() const = 0;
};

}  // namespace trimtab::cluster
