#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "model/expert_model.h"
#include "policy/experts/dispatch/estimator.h"
#include "policy/experts/dispatch/shares.h"
#include "policy/experts/load_window.h"
#include "policy/experts/plan/repair.h"
#include "policy/experts/types.h"
#include "sim/expert_peak.h"

namespace trimtab::sim {

/// One simulated MoE layer of a group: its loads, the map in force and the next one, and how copies share.
class ExpertLayer {
 public:
  /// `estimate_steps`: that sharing by load looks back.
  ExpertLayer(const experts::Shape& shape, model::ExpertPolicy policy, std::int32_t estimate_steps);

  /// The loads of an epoch, [experts], adding up to 1. `fresh`: also plans for them, to know what is
  /// avoidable.
  void set_popularity(std::span<const double> popularity, bool fresh);
  std::span<const double> popularity() const { return popularity_; }

  /// Draws a step's counts, says how uneven the ranks were, and lets dispatch see them.
  double draw(base::Prng& prng, double choices);
  std::span<const std::int64_t> counts() const { return counts_; }
  /// Draws what dispatch would have seen of the last steps: the estimate that a repair starts from.
  void observe(base::Prng& prng, double choices);

  /// Expected busiest rank over mean of the map in force, or of the plan for the loads of the moment.
  double expected(double choices, bool fresh) const;

  /// Plans from counts [steps, experts], or repairs from the estimate when there are none, and returns the
  /// copies that the busiest rank must receive. The map takes effect with `take`.
  std::int64_t plan(std::span<const std::int64_t> window, std::uint64_t period_steps);
  void take();
  std::int64_t received() const { return received_; }  // by the last plan, all ranks
  std::span<const std::int32_t> map() const { return map_; }
  /// What each rank computes of each expert, [ranks, experts], as a share of the layer's choices under the
  /// popularity of the moment: with the map in force, or with the first.
  std::vector<double> placed(bool first) const;
  bool shares_by_load() const { return by_load_; }

 private:
  /// Shares of the slots: even, or the best for `loads`.
  void share(experts::ShareSolver& solver, std::span<const double> loads, std::span<double> out) const;
  void adopt(std::span<const std::int32_t> map);
  void measure();

  experts::Shape shape_;
  model::ExpertPolicy policy_;
  std::int32_t estimate_steps_;
  bool by_load_;
  experts::SlotMap map_, next_, fresh_map_;
  std::vector<double> popularity_, shares_, fresh_shares_, true_shares_;
  std::vector<RankMoments> moments_, fresh_moments_;
  std::vector<std::int64_t> counts_;
  experts::ShareSolver solver_;  // of the map in force
  experts::LoadEstimator estimator_;
  experts::Repairer repairer_;
  std::int64_t received_ = 0;
  bool planned_ = false;  // once
};

}  // namespace trimtab::sim
