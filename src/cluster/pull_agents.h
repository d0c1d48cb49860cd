#pragma once

#include <vector>

#include "cluster/actions.h"
#include "cluster/events.h"
#include "model/cluster_config.h"
#include "model/profile.h"

namespace trimtab::cluster {

/// The pulling side for engines that do not pull by themselves (the reference engine): accounts, per prefill
/// rank, for the predicted quota and the blocks of what the rank was given, and says when an engine has quota
/// left. The host shows it every event and every action, in order, and steps the Pulls it makes:
///
///   cluster.step(event, now, actions);
///   agents.observe(event);
///   for (action : actions) agents.observe(action);
///   agents.take_pulls(pulls);   // Pulls of the engines whose account changed; step them too
class PullAgents {
 public:
  PullAgents(const model::ClusterConfig& config, const model::Profile& profile);
  void observe(const Event& event);
  void observe(const Action& action);
  void take_pulls(std::vector<Event>& out);
};

}  // namespace trimtab::cluster
