#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "policy/experts/load_window.h"

namespace trimtab::experts_eval {

/// Tokens per step, layer and expert: counts[(step * layers + layer) * experts + expert].
struct Loads {
  std::int32_t steps = 0, layers = 0, experts = 0;
  std::vector<std::int32_t> counts;

  const std::int32_t* at(std::int32_t step, std::int32_t layer) const {
    return counts.data() + (static_cast<std::size_t>(step) * static_cast<std::size_t>(layers) +
                            static_cast<std::size_t>(layer)) *
                               static_cast<std::size_t>(experts);
  }
  std::ptrdiff_t step_stride() const { return static_cast<std::ptrdiff_t>(layers) * experts; }
  /// The steps [first, first + count) of one layer. Errors: as LoadWindow's, and steps that are not there.
  base::Result<experts::LoadWindow> window(std::int32_t layer, std::int32_t first, std::int32_t count) const;
};

/// Popularity of the experts of each layer is lognormal (sigma) or Zipf (exponent, in random order); it
/// drifts as an Ornstein-Uhlenbeck process whose stationary deviation is half of the base's, and bursts by
/// domain: a random share of all experts grows by e^amplitude for an exponential time. Counts are Poisson, at
/// most `tokens` an expert. The tables of docs/policies/experts.md use drift 0.002 for windows of 100 steps,
/// 0.0004 for 1,000.
struct SyntheticConfig {
  std::int32_t steps = 200, layers = 1, experts = 384, top_k = 6;
  std::int32_t tokens = 2048;  // of the whole group, per step
  double sigma = 0.8;
  std::optional<double> zipf;  // when set, in place of the lognormal
  double drift = 0.002;        // per step
  double burst_probability = 0.02, burst_mean_steps = 60, burst_amplitude = 1.2, burst_share = 0.08;
  std::uint64_t seed = 0;
  /// Another draw of the counts from the very same rates: what a plan gained by fitting count noise is lost
  /// on it.
  std::uint64_t draw = 0;
};

/// Errors name the value: sizes below 1, top_k above experts, drift outside [0, 1], shares outside [0, 1].
base::Result<Loads> generate(const SyntheticConfig& config);

/// Poisson(mean), mean >= 0: inversion below 10, else Hoermann's transformed rejection (PTRS, 1993).
std::int64_t poisson(base::Prng& prng, double mean);

}  // namespace trimtab::experts_eval
