#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cluster/actions.h"
#include "cluster/events.h"
#include "model/cluster_config.h"
#include "model/profile.h"
#include "policy/cost/cost_model.h"

namespace trimtab::cluster {

/// The pulling side for engines that do not pull by themselves (the reference engine): accounts, per prefill
/// rank, for the predicted quota and the blocks of what the rank was given, and asks for more while a rank
/// has less than `outstanding_steps` step budgets ahead of it. The host shows it every event and every
/// action, in order, and steps the Pulls it makes, until none is left:
///
///   cluster.step(event, now, actions);
///   agents.observe(event);
///   for (action : actions) agents.observe(action);
///   agents.take_pulls(pulls);   // one Pull per engine whose account changed
///
/// Blocks are those of the whole prompt, promised when granted and free again when the rank is done with the
/// request or has answered its Abort: a rank is never sent what it cannot hold.
class PullAgents {
 public:
  PullAgents(const model::ClusterConfig& config, const model::Profile& profile);
  void observe(const Event& event);
  void observe(const Action& action);
  /// Appends; each engine's pull is taken once.
  void take_pulls(std::vector<Event>& out);

  /// Requests on the books; 0 when nothing is granted.
  std::size_t accounts() const;

 private:
  struct Account {
    TokenCount tokens;
    Nanos quota;
    std::int64_t blocks = 0;
    bool shared = false;  // the whole group computes it: charged to all ranks alike
  };
  struct Rank {
    bool there = false;
    std::int64_t blocks_total = 0;
    std::map<RequestId, Account> accounts;
    Nanos quota;  // sums over the accounts that are not shared
    std::int64_t blocks = 0;
  };
  struct Engine {
    std::vector<Rank> ranks;
    Nanos shared;  // sum over the shared accounts of all ranks
    bool changed = false;
  };
  static constexpr std::size_t kNone = SIZE_MAX;
  Rank* find(RankId rank);
  void mark(EngineId engine);
  void progress(const PrefillStepped& step);
  void end(RankId rank, RequestId id);
  Nanos& quota_of(RankId rank, const Account& account);
  void reset(Place place, std::int64_t blocks_total, bool there);

  policy::CostModel cost_;
  model::PrefillConfig config_;
  Nanos fill_;  // quota that a rank may have outstanding
  std::vector<Engine> engines_;
  std::size_t changed_first_ = kNone, changed_last_ = 0;  // between them lie all that changed
};

}  // namespace trimtab::cluster
