#pragma once

#include <cstdint>
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
  double error_ratio_mean =
      0.0;  // mean of |predicted - actual| / actual over the samples that are no outliers
  double error_ratio_worst = 0.0;
  std::size_t samples = 0;   // all, outliers included
  std::size_t outliers = 0;  // steps that something else slowed or sped up; they moved nothing
  std::size_t shapes = 0;    // distinct (tokens, pairs) among the samples
  // Of `fit_checked`: steps that the coefficients behind these errors have not seen (every fifth).
  std::size_t held_out = 0;
  std::size_t held_out_outliers = 0;
  double held_out_error_ratio_mean = 0.0;  // outliers left out
  double held_out_error_ratio_p90 = 0.0;   // of all held-out steps, outliers included
  std::string reason;                      // which terms were kept, and the errors, in words
};

/// Least squares on relative errors (each step weighs 1 / actual^2, because the alarm is on relative error),
/// with coefficients kept >= 0: of the eight subsets of {fixed, token, pair} the feasible one with the least
/// error. Robust by least trimmed squares (Rousseeuw; FAST-LTS with deterministic starts): the coefficients
/// that fit the better half of the steps best decide which steps are outliers (further than 3.5 robust
/// deviations and 5 %), and the rest is fitted once more in full. Stands up to nearly half of the steps being
/// arbitrary. The same samples in the same order give the same coefficients. O(200 n).
/// Errors: kInvalidArgument with fewer than three samples, an empty one, or an actual of 0.
base::Result<QuadraticFit> fit_quadratic(std::span<const StepSample> samples);

struct FitLimits {
  std::size_t samples_min = 30;
  std::size_t shapes_min = 6;        // distinct (tokens, pairs)
  double held_out_error_max = 0.10;  // mean over the held-out steps that are no outliers
  double outlier_ratio_max = 0.25;   // beyond, it is no longer clear who the outliers are
  double own_variation_min = 1e-3;   // share of a term that the other terms must leave unexplained
};

/// The same for a profile that production will trust: it is refused rather than written wrong. The
/// coefficients are those of all steps; their error is measured on every fifth step by a fit without those.
/// Errors (kInvalidArgument), each with its figure and what would mend it: too few steps or shapes, tokens or
/// contexts that do not vary on their own, too many outliers, an error on held-out steps above the limit.
base::Result<QuadraticFit> fit_checked(std::span<const StepSample> samples, const FitLimits& limits = {});

}  // namespace trimtab::policy
