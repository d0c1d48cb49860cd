#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "cluster/actions.h"
#include "cluster/events.h"
#include "cluster/status.h"
#include "cluster/tier_queue.h"
#include "model/cluster_config.h"
#include "model/profile.h"
#include "policy/decode/policy.h"

namespace trimtab::cluster {

class Machine;

/// The whole serving system as one deterministic state machine: request life, membership, tier queues,
/// leases, pairing with encoders and decode ranks. The host owns time, sockets, tokens and bytes.
///
///   host: event -> step() -> actions -> do them -> their answers are events again
///
/// The same events at the same instants give the same actions, bit for bit. It is the one placer of all its
/// decode groups. One thread.
class Cluster {
 public:
  /// `queue`: where work waits (queue::EmbeddedQueue). Errors: a policy name that nobody knows, values out of
  /// range.
  static base::Result<std::unique_ptr<Cluster>> make(const model::ClusterConfig& config,
                                                     const model::Profile& profile,
                                                     std::unique_ptr<TierQueue> queue);
  /// With a decode policy of the host's own instead of the configured one (a simulator of several placers).
  static base::Result<std::unique_ptr<Cluster>> make(const model::ClusterConfig& config,
                                                     const model::Profile& profile,
                                                     std::unique_ptr<TierQueue> queue,
                                                     std::unique_ptr<policy::DecodePolicy> decode);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Appends what the host has to do, in order. `now` never goes back.
  void step(const Event& event, Nanos now, std::vector<Action>& out);

  /// Off: no Log actions, and no time spent on their words. A simulator of millions of requests reads none.
  void keep_records(bool keep);
  ClusterStatus status() const;
  Census census() const;
  /// Every engine, group and encoder of the configuration serves.
  bool ready() const;

 private:
  explicit Cluster(std::unique_ptr<Machine> machine);
  std::unique_ptr<Machine> machine_;
};

}  // namespace trimtab::cluster
