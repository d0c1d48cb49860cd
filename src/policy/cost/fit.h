#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/profile.h"

namespace trimtab::policy {

struct SampleChunk {
  base::TokenCount tokens;    // q
  base::TokenCount computed;  // c
};

/// One measured step: what it computed and how long it took, all of it.
struct StepSample {
  std::vector<SampleChunk> chunks;
  base::Nanos actual;
};

struct QuadraticFit {
  model::QuadraticCost cost;
  double error_ratio_mean = 0.0;  // mean of |predicted - actual| / actual over the samples
  double error_ratio_worst = 0.0;
  std::size_t samples = 0;
  std::string reason;  // which terms were kept, and the error, in words
};

/// Least squares on relative errors (each step weighs 1 / actual^2, because the alarm is on relative error),
/// with coefficients kept >= 0: of the eight subsets of {fixed, token, pair} the feasible one with the least
/// error. O(samples). Weakness: one outlier (a step that the system suspended) moves it; a robust form comes
/// later, so callers give medians. Errors: kInvalidArgument with fewer than three samples, an empty one, or
/// an actual of 0.
base::Result<QuadraticFit> fit_quadratic(std::span<const StepSample> samples);

}  // namespace trimtab::policy
