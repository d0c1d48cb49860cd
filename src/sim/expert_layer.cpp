#include "sim/expert_layer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "experts_eval/published.h"
#include "experts_eval/synthetic_loads.h"
#include "policy/experts/plan/planner.h"
#include "policy/experts/plan/single_step.h"

namespace trimtab::sim {
namespace {

using experts::Shape;
using experts::ShareSolver;
using experts::SlotMap;
using model::ExpertPolicy;

experts::EstimatorOptions looking_back(std::int32_t steps) {
  experts::EstimatorOptions options;
  options.memory_steps = static_cast<double>(steps);
  return options;
}

template <class T>
T good(base::Result<T> result) {
  TRIMTAB_CHECK(result.has_value(), result.error().message);
  return std::move(*result);
}

ShareSolver solver_for(const Shape& shape, std::span<const std::int32_t> map) {
  return good(ShareSolver::make(shape, map));
}

/// Copies that the busiest rank must receive.
std::int64_t received_most(const Shape& shape, std::span<const std::int32_t> before,
                           std::span<const std::int32_t> after) {
  const auto width = static_cast<std::size_t>(shape.slots_per_rank());
  std::int64_t most = 0;
  for (std::size_t first = 0; first < before.size(); first += width) {
    const auto held = before.subspan(first, width);
    std::int64_t received = 0;
    for (std::size_t slot = first; slot < first + width; ++slot) {
      const auto earlier = after.subspan(first, slot - first);
      const bool has = std::ranges::find(held, after[slot]) != held.end() ||
                       std::ranges::find(earlier, after[slot]) != earlier.end();
      received += has ? 0 : 1;
    }
    most = std::max(most, received);
  }
  return most;
}

}  // namespace

ExpertLayer::ExpertLayer(const Shape& shape, ExpertPolicy policy, std::int32_t estimate_steps)
    : shape_(shape),
      policy_(policy),
      estimate_steps_(estimate_steps),
      by_load_(policy == ExpertPolicy::kIncremental || policy == ExpertPolicy::kRepair),
      map_(experts::initial_map(shape)),
      next_(map_),
      fresh_map_(map_),
      popularity_(static_cast<std::size_t>(shape.experts), 1.0 / shape.experts),
      shares_(map_.size()),
      fresh_shares_(map_.size()),
      true_shares_(map_.size()),
      moments_(static_cast<std::size_t>(shape.ranks)),
      fresh_moments_(moments_.size()),
      counts_(popularity_.size()),
      solver_(solver_for(shape, map_)),
      estimator_(shape.experts, looking_back(estimate_steps)) {
  adopt(map_);
}

void ExpertLayer::share(ShareSolver& solver, std::span<const double> loads, std::span<double> out) const {
  if (by_load_) {
    good(solver.solve(loads));
    solver.shares(out);
    return;
  }
  const auto map = solver.map();
  const std::vector<std::int32_t> copies = experts::copies_of(shape_, map);
  for (std::size_t slot = 0; slot < map.size(); ++slot) {
    out[slot] = 1.0 / copies[static_cast<std::size_t>(map[slot])];
  }
}

void ExpertLayer::adopt(std::span<const std::int32_t> map) {
  map_.assign(map.begin(), map.end());
  solver_ = solver_for(shape_, map_);
  const bool seen = std::ranges::any_of(estimator_.estimate(), [](double tokens) { return tokens > 0; });
  share(solver_, seen ? estimator_.estimate() : std::span<const double>(popularity_), shares_);
  measure();
}

void ExpertLayer::measure() {
  share(solver_, popularity_, true_shares_);
  rank_moments(shape_, map_, true_shares_, popularity_, moments_);
}

void ExpertLayer::set_popularity(std::span<const double> popularity, bool fresh) {
  std::ranges::copy(popularity, popularity_.begin());
  measure();
  if (fresh) fresh_map_ = experts::plan_single_step(shape_, popularity_, experts::Effort::kFast, 1);
  ShareSolver solver = solver_for(shape_, fresh_map_);
  share(solver, popularity_, fresh_shares_);
  rank_moments(shape_, fresh_map_, fresh_shares_, popularity_, fresh_moments_);
}

double ExpertLayer::draw(base::Prng& prng, double choices) {
  for (std::size_t e = 0; e < counts_.size(); ++e)
    counts_[e] = experts_eval::poisson(prng, choices * popularity_[e]);
  const double peak = drawn_peak(shape_, map_, shares_, counts_);
  if (by_load_) {
    estimator_.observe(std::span<const std::int64_t>(counts_));
    share(solver_, estimator_.estimate(), shares_);
  }
  return peak;
}

void ExpertLayer::observe(base::Prng& prng, double choices) {
  for (std::size_t e = 0; e < counts_.size(); ++e)
    counts_[e] = experts_eval::poisson(prng, choices * popularity_[e] * estimate_steps_);
  estimator_ = experts::LoadEstimator(shape_.experts, looking_back(estimate_steps_));
  estimator_.observe(std::span<const std::int64_t>(counts_));
}

double ExpertLayer::expected(double choices, bool fresh) const {
  // The estimate is a mean of so many counts: its error adds that part of a count's variance.
  const double error = by_load_ ? 1.0 / (estimate_steps_ - 1) : 0;
  return expected_peak(fresh ? fresh_moments_ : moments_, choices, error);
}

std::int64_t ExpertLayer::plan(std::span<const std::int64_t> window, std::uint64_t period_steps) {
  if (window.empty()) {
    next_ = good(repairer_.repair(shape_, estimator_.estimate(), map_)).map;
  } else {
    const auto steps = static_cast<std::int32_t>(window.size() / counts_.size());
    const auto loads = good(experts::LoadWindow::make(window.data(), steps, shape_.experts, shape_.experts));
    if (policy_ == ExpertPolicy::kDeepInfer) {
      next_ = good(experts_eval::deepinfer_plan(shape_, loads));
    } else {
      experts::PlanOptions options;
      options.start = planned_ ? experts::Start::kIncremental : experts::Start::kFresh;
      options.period_steps = static_cast<std::int32_t>(std::min<std::uint64_t>(period_steps, INT32_MAX));
      next_ = good(experts::plan_layer(shape_, loads, map_, options)).map;
    }
  }
  planned_ = true;
  received_ = experts::received_copies(shape_, map_, next_);
  return received_most(shape_, map_, next_);
}

std::vector<double> ExpertLayer::placed(bool first) const {
  const SlotMap map = first ? experts::initial_map(shape_) : map_;
  ShareSolver solver = solver_for(shape_, map);
  std::vector<double> shares(map.size());
  share(solver, popularity_, shares);
  std::vector<double> out(moments_.size() * popularity_.size());
  const auto width = static_cast<std::size_t>(shape_.slots_per_rank());
  for (std::size_t slot = 0; slot < map.size(); ++slot) {
    const auto expert = static_cast<std::size_t>(map[slot]);
    out[slot / width * popularity_.size() + expert] += shares[slot] * popularity_[expert];
  }
  return out;
}

void ExpertLayer::take() {
  if (next_ != map_) adopt(next_);
}

}  // namespace trimtab::sim
