#include "policy/experts/dispatch/estimator.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace trimtab::experts {

LoadEstimator::LoadEstimator(std::int32_t experts, const EstimatorOptions& options) : options_(options) {
  TRIMTAB_CHECK(experts > 0 && options.memory_steps >= 1);
  mean_.assign(static_cast<std::size_t>(experts), 0.0);
  seen_.assign(mean_.size(), 0.0);
  residual_.assign(mean_.size(), 0.0);
}

void LoadEstimator::observe(std::span<const std::int64_t> tokens) { observe_all(tokens); }
void LoadEstimator::observe(std::span<const std::int32_t> tokens) { observe_all(tokens); }
void LoadEstimator::observe(std::span<const double> tokens) { observe_all(tokens); }

template <class T>
void LoadEstimator::observe_all(std::span<const T> tokens) {
  TRIMTAB_CHECK(tokens.size() == mean_.size());
  ++steps_;
  // The mean's first steps weigh alike; then the oldest fade.
  const double steps = std::min(static_cast<double>(steps_), options_.memory_steps);
  switch (options_.kind) {
    case Estimate::kLast:
      for (std::size_t e = 0; e < mean_.size(); ++e) mean_[e] = static_cast<double>(tokens[e]);
      break;
    case Estimate::kMean:
      for (std::size_t e = 0; e < mean_.size(); ++e) {
        mean_[e] += (static_cast<double>(tokens[e]) - mean_[e]) / steps;
      }
      break;
    case Estimate::kAdaptive:
      for (std::size_t e = 0; e < mean_.size(); ++e) observe_adaptive(e, static_cast<double>(tokens[e]));
      break;
  }
}

void LoadEstimator::observe_adaptive(std::size_t expert, double tokens) {
  double& mean = mean_[expert];
  double& seen = seen_[expert];
  const double gap = tokens - mean;
  bool restart = seen == 0;
  if (!restart) {
    // A mean of zero still has the deviation of one token, or the first token would restart everything.
    const double variance = std::max(mean, 1.0) * (1 + 1 / seen);
    const double now = gap / std::sqrt(variance);  // correctly rounded by IEEE 754: alike everywhere
    const double before = residual_[expert];
    const bool pair = (now > 0) == (before > 0) && std::abs(now + before) > options_.pair_limit;
    restart = std::abs(now) > options_.single_limit || (before != 0 && pair);
    residual_[expert] = restart ? 0 : now;
    restarts_ += restart ? 1 : 0;
  }
  if (restart) {
    mean = tokens;
    seen = 1;
    return;
  }
  seen = std::min(seen + 1, options_.memory_steps);
  mean += gap / seen;
}

}  // namespace trimtab::experts
