#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab::experts {

enum class Estimate : std::uint8_t {
  kLast,      // the counts of the last step
  kMean,      // exponential average of `memory_steps`
  kAdaptive,  // running mean of at most `memory_steps`, forgotten when the counts contradict it
};

struct EstimatorOptions {
  Estimate kind = Estimate::kAdaptive;
  double memory_steps = 8;
  /// Adaptive: one count further than this from the mean, in standard deviations of a Poisson count, or two
  /// in a row on the same side that add up to more than `pair_limit`, start the mean anew.
  double single_limit = 3.0;
  double pair_limit = 3.9;
};

/// What each expert of one layer will be asked for in the next step, from the counts seen.
///
/// Algorithm: per expert, mean += (count - mean) / n with n = min(steps since the last restart, memory). The
/// residual's variance is mean * (1 + 1 / (n - 1)) for a Poisson count against a mean of n - 1 of them. Cost:
/// one pass over the experts, no allocation. Weakness: an expert whose counts are burstier than Poisson
/// restarts too often; take kMean then (real routing of a few requests).
class LoadEstimator {
 public:
  LoadEstimator(std::int32_t experts, const EstimatorOptions& options);

  /// Tokens per expert of one step, [experts], finite and not negative.
  void observe(std::span<const std::int32_t> tokens);
  void observe(std::span<const std::int64_t> tokens);
  void observe(std::span<const double> tokens);
  /// [experts]; zero before the first step.
  std::span<const double> estimate() const { return mean_; }
  std::int64_t restarts() const { return restarts_; }

 private:
  template <class T>
  void observe_all(std::span<const T> tokens);
  void observe_adaptive(std::size_t expert, double tokens);

  EstimatorOptions options_;
  std::int64_t steps_ = 0, restarts_ = 0;
  std::vector<double> mean_;
  std::vector<double> seen_;      // steps in the mean, at most memory_steps
  std::vector<double> residual_;  // of the last step, in standard deviations
};

}  // namespace trimtab::experts
