#pragma once

#include <memory>
#include <vector>

#include "cluster/actions.h"
#include "cluster/events.h"
#include "model/cluster_config.h"
#include "model/profile.h"

namespace trimtab::cluster {

/// The whole serving system as one deterministic state machine: request life, membership, tier queues,
/// leases, pairing with encoders and decode ranks. The host owns time, sockets, tokens and bytes.
///
///   host: event -> step() -> actions -> do them -> their answers are events again
///
/// The same events at the same instants give the same actions, bit for bit. One thread.
class Cluster {
 public:
  Cluster(const model::ClusterConfig& config, const model::Profile& profile);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Appends what the host has to do, in order. `now` never goes back.
  void step(const Event& event, Nanos now, std::vector<Action>& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab::cluster
