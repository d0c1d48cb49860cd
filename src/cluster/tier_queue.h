#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/events.h"

namespace trimtab::cluster {

/// One request that waits for a prefill engine.
struct QueueItem {
  RequestId id;
  model::TierId tier;
  Nanos quota;                      // predicted, for all that is left of it
  Nanos arrival;                    // its aging clock: kept when it comes back
  Nanos deadline = base::kForever;  // instant
  bool front = false;               // came back (preempted, redone): before all that did not
};

struct TierRange {
  model::TierId first, last;  // inclusive
};

struct Lease {
  QueueItem item;
  bool aged = false;  // it was taken out of turn because it had waited too long
  Nanos until;
};

/// The work queue of the tiers, as a work-queue stream with pull consumers offers it: a pulled item is
/// leased, and either acknowledged, given back, extended, or it expires. The cluster machine uses only this,
/// so a queue outside the process can take the embedded one's place.
class TierQueue {
 public:
  virtual ~TierQueue() = default;
  /// `item.id` must not be in the queue or leased.
  virtual void push(const QueueItem& item) = 0;
  /// Leases the next item of these tiers. An item that has waited longer than the aging bound comes first,
  /// whatever its tier.
  virtual std::optional<Lease> pull(TierRange tiers, Nanos now) = 0;
  /// The leased item is done with: gone for good. False when it is not leased.
  virtual bool ack(RequestId id) = 0;
  /// The leased item goes back to the very place it had. False when it is not leased.
  virtual bool nack(RequestId id) = 0;
  /// The lease runs from `now` anew. False when it is not leased.
  virtual bool extend(RequestId id, Nanos now) = 0;
  /// Out, queued or leased. False when it is not here.
  virtual bool remove(RequestId id) = 0;
  /// Leases that ran out by `now`, by expiry then id. They stay leased: the caller extends, nacks or acks
  /// each.
  virtual std::vector<RequestId> expired(Nanos now) const = 0;
  /// kForever: no lease is out.
  virtual Nanos next_expiry() const = 0;
  /// When the next queued item becomes aged; kForever: none waits.
  virtual Nanos next_aging(Nanos now) const = 0;

  virtual std::size_t depth(model::TierId tier) const = 0;
  virtual Nanos quota(model::TierId tier) const = 0;  // queued, not leased
  virtual std::size_t queued() const = 0;
  virtual std::size_t leased() const = 0;
};

}  // namespace trimtab::cluster
