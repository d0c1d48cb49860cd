#include "policy/cost/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "base/prng.h"
#include "policy/cost/cost_model.h"
#include "policy/cost/fit_terms.h"

namespace trimtab::policy {

namespace {

using fit_terms::kTerms;
using fit_terms::Problem;
using fit_terms::Row;
using fit_terms::Solution;
using Indices = std::vector<std::uint32_t>;

constexpr int kStarts = 40, kStepsOfEach = 3;  // FAST-LTS: many starts, few concentration steps each
constexpr int kRoundsMax = 20;
constexpr double kDeviations = 3.5, kNeverOutlier = 0.05;
constexpr std::size_t kHeldOutEvery = 5;

[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

base::Status check(std::span<const StepSample> samples) {
  if (samples.size() < kTerms) {
    return base::fail(
        base::Code::kInvalidArgument,
        std::to_string(samples.size()) + " samples; a fit of three coefficients needs at least 3", "cost");
  }
  for (const StepSample& sample : samples) {
    if (sample.chunks.empty() || sample.actual.value <= 0) {
      return base::fail(base::Code::kInvalidArgument, "a sample without chunks or without time", "cost");
    }
  }
  return {};
}

/// The `count` of `all` that the coefficients fit best, ties by position; `error` sums their squares.
Indices best_fitted(const Problem& problem, const Indices& all, const Row& coefficients, std::size_t count,
                    double& error) {
  std::vector<std::pair<double, std::uint32_t>> order;
  order.reserve(all.size());
  for (const std::uint32_t at : all)
    order.emplace_back(std::abs(fit_terms::residual(problem.rows[at], coefficients)), at);
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count) - 1, order.end());
  order.resize(count);
  Indices chosen;
  for (const auto& [r, at] : order) chosen.push_back(at);
  std::sort(chosen.begin(), chosen.end());  // one order of summing, whatever nth_element left
  error = 0;
  for (const std::uint32_t at : chosen) {
    const double r = fit_terms::residual(problem.rows[at], coefficients);
    error += r * r;
  }
  return chosen;
}

/// Least trimmed squares: coefficients that fit `count` of the rows best, whichever these are.
Solution least_trimmed(const Problem& problem, const Indices& all, std::size_t count) {
  base::Prng prng(1);
  Solution best = fit_terms::solve(problem, all);
  double best_error = 0;
  best_fitted(problem, all, best.coefficients, count, best_error);
  const auto concentrate = [&](Solution start, int steps) {
    double error = 0, before = std::numeric_limits<double>::infinity();
    for (int step = 0; step < steps; ++step) {
      start = fit_terms::solve(problem, best_fitted(problem, all, start.coefficients, count, error));
      if (error >= before) break;  // the error of the chosen never rises, so this is its bottom
      before = error;
    }
    best_fitted(problem, all, start.coefficients, count, error);
    if (error < best_error) {
      best_error = error;
      best = start;
    }
  };
  concentrate(best, kRoundsMax);
  for (int start = 0; start < kStarts; ++start) {
    // Three rows decide three coefficients; one start of few bad rows is enough.
    Indices few;
    for (std::size_t i = 0; i < kTerms; ++i) few.push_back(all[prng.below(all.size())]);
    concentrate(fit_terms::solve(problem, few), kStepsOfEach);
  }
  concentrate(best, kRoundsMax);
  return best;
}

struct Robust {
  Solution solution;
  std::vector<bool> outlier;  // by row of the problem, also those that were not used
  double threshold = 0;
};

void mark(const Problem& problem, Robust& robust) {
  robust.outlier.resize(problem.rows.size());
  for (std::size_t at = 0; at < problem.rows.size(); ++at) {
    robust.outlier[at] =
        std::abs(fit_terms::residual(problem.rows[at], robust.solution.coefficients)) > robust.threshold;
  }
}

Robust fit_rows(const Problem& problem, const Indices& used) {
  Robust robust;
  const std::size_t count = std::min(used.size(), used.size() / 2 + kTerms - 1);
  robust.solution = least_trimmed(problem, used, count);
  // 1.4826 medians of |residual| are a standard deviation where errors are normal.
  std::vector<double> sizes;
  for (const std::uint32_t at : used)
    sizes.push_back(std::abs(fit_terms::residual(problem.rows[at], robust.solution.coefficients)));
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  robust.threshold = std::max(kDeviations * 1.4826 * *middle, kNeverOutlier);
  mark(problem, robust);
  Indices inliers;
  for (const std::uint32_t at : used)
    if (!robust.outlier[at]) inliers.push_back(at);
  if (inliers.size() >= kTerms) robust.solution = fit_terms::solve(problem, inliers);
  mark(problem, robust);
  return robust;
}

model::QuadraticCost cost_of(const Problem& problem, const Solution& solution) {
  Row ns{};
  for (std::size_t i = 0; i < kTerms; ++i)
    ns[i] = problem.scale[i] > 0 ? solution.coefficients[i] / problem.scale[i] : 0;
  const auto whole = [](double value) { return std::llround(std::min(value, 1e12)); };
  return {whole(ns[0]), whole(ns[1] * 1000), whole(ns[2] * 1000)};
}

/// The error of the integers that will be used, not of the doubles.
double error_ratio(const CostModel& model, const StepSample& sample) {
  base::Nanos predicted = model.fixed();
  for (const SampleChunk& chunk : sample.chunks)
    predicted += model.cost(chunk.tokens, chunk.computed, chunk.tokens + chunk.computed);
  return std::abs(static_cast<double>((predicted - sample.actual).value)) /
         static_cast<double>(sample.actual.value);
}

std::size_t count_shapes(std::span<const StepSample> samples) {
  std::set<std::pair<double, double>> shapes;
  for (const StepSample& sample : samples) {
    const Row row = fit_terms::features(sample);
    shapes.emplace(row[1], row[2]);
  }
  return shapes.size();
}

QuadraticFit summarize(std::span<const StepSample> samples, const Problem& problem, const Robust& robust) {
  QuadraticFit fit;
  fit.cost = cost_of(problem, robust.solution);
  fit.samples = samples.size();
  fit.outliers = static_cast<std::size_t>(std::count(robust.outlier.begin(), robust.outlier.end(), true));
  fit.shapes = count_shapes(samples);
  const CostModel model(fit.cost, model::QuotaScope::kWholeStep);
  const auto fitted = static_cast<double>(samples.size() - fit.outliers);
  for (std::size_t at = 0; at < samples.size(); ++at) {
    if (robust.outlier[at]) continue;
    const double error = error_ratio(model, samples[at]);
    fit.error_ratio_mean += error / fitted;
    fit.error_ratio_worst = std::max(fit.error_ratio_worst, error);
  }
  const unsigned kept = robust.solution.kept;
  fit.reason = text_of("kept%s%s%s of fixed, token, pair; error %.2f %% mean, %.2f %% worst of %zu steps",
                       (kept & 1U) != 0 ? " fixed" : "", (kept & 2U) != 0 ? " token" : "",
                       (kept & 4U) != 0 ? " pair" : "", 100 * fit.error_ratio_mean,
                       100 * fit.error_ratio_worst, samples.size() - fit.outliers);
  if (fit.outliers > 0) fit.reason += text_of("; %zu outliers left out", fit.outliers);
  return fit;
}

base::Status refuse(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "cost");
}

/// Whether the steps can tell the three coefficients apart at all.
base::Status check_variety(const Problem& problem, const Robust& robust, const FitLimits& limits) {
  Indices inliers;
  for (std::uint32_t at = 0; at < problem.rows.size(); ++at)
    if (!robust.outlier[at]) inliers.push_back(at);
  if (const double own = fit_terms::own_variation(problem, inliers, 1, 1U); own < limits.own_variation_min) {
    return refuse(text_of(
        "the number of tokens hardly varies on its own between the steps (%.5f of its variation, at least "
        "%.5f needed), so the cost of a token cannot be told from a step's fixed cost: record steps with few "
        "and with many tokens",
        own, limits.own_variation_min));
  }
  if (const double own = fit_terms::own_variation(problem, inliers, 2, 3U); own < limits.own_variation_min) {
    return refuse(text_of(
        "query-key pairs hardly vary on their own between the steps (%.5f of their variation, at least %.5f "
        "needed), so the cost of a pair cannot be told from that of a token: record steps with short and "
        "with "
        "long contexts",
        own, limits.own_variation_min));
  }
  return {};
}

/// Fits without every fifth step and measures on those.
void measure_held_out(std::span<const StepSample> samples, const Problem& problem, QuadraticFit& fit) {
  Indices seen;
  for (std::uint32_t at = 0; at < problem.rows.size(); ++at)
    if (at % kHeldOutEvery != kHeldOutEvery - 1) seen.push_back(at);
  const Robust robust = fit_rows(problem, seen);
  const CostModel model(cost_of(problem, robust.solution), model::QuotaScope::kWholeStep);
  std::vector<double> errors;
  double sum = 0;
  for (std::size_t at = kHeldOutEvery - 1; at < samples.size(); at += kHeldOutEvery) {
    errors.push_back(error_ratio(model, samples[at]));
    if (robust.outlier[at]) {
      ++fit.held_out_outliers;
    } else {
      sum += errors.back();
    }
  }
  fit.held_out = errors.size();
  if (const std::size_t usual = fit.held_out - fit.held_out_outliers; usual > 0)
    fit.held_out_error_ratio_mean = sum / static_cast<double>(usual);
  std::sort(errors.begin(), errors.end());
  if (!errors.empty()) fit.held_out_error_ratio_p90 = errors[(errors.size() - 1) * 9 / 10];
}

}  // namespace

base::Result<QuadraticFit> fit_quadratic(std::span<const StepSample> samples) {
  TRIMTAB_TRY(check(samples));
  const Problem problem = fit_terms::weigh(samples);
  Indices all(samples.size());
  std::iota(all.begin(), all.end(), 0U);
  return summarize(samples, problem, fit_rows(problem, all));
}

base::Result<QuadraticFit> fit_checked(std::span<const StepSample> samples, const FitLimits& limits) {
  if (samples.size() < limits.samples_min) {
    TRIMTAB_TRY(refuse(text_of("%zu steps; a calibration needs at least %zu: record longer", samples.size(),
                               limits.samples_min)));
  }
  TRIMTAB_TRY(check(samples));
  const Problem problem = fit_terms::weigh(samples);
  Indices all(samples.size());
  std::iota(all.begin(), all.end(), 0U);
  const Robust robust = fit_rows(problem, all);
  QuadraticFit fit = summarize(samples, problem, robust);
  if (fit.shapes < limits.shapes_min) {
    TRIMTAB_TRY(refuse(text_of(
        "only %zu distinct shapes (tokens, contexts) in %zu steps; at least %zu are needed: record steps of "
        "several chunk lengths and contexts",
        fit.shapes, fit.samples, limits.shapes_min)));
  }
  const double outlier_ratio = static_cast<double>(fit.outliers) / static_cast<double>(fit.samples);
  if (outlier_ratio > limits.outlier_ratio_max) {
    TRIMTAB_TRY(refuse(text_of(
        "%zu of %zu steps are outliers (%.0f %%, at most %.0f %%): these steps follow no one cost; was the "
        "machine busy with something else, or are two models or machines mixed?",
        fit.outliers, fit.samples, 100 * outlier_ratio, 100 * limits.outlier_ratio_max)));
  }
  TRIMTAB_TRY(check_variety(problem, robust, limits));
  measure_held_out(samples, problem, fit);
  if (fit.held_out_error_ratio_mean > limits.held_out_error_max) {
    TRIMTAB_TRY(refuse(text_of(
        "the fit is off by %.1f %% in the mean on %zu steps it had not seen (at most %.1f %%): the quadratic "
        "does not describe these steps; record them on a quiet machine, or use the model's exact form",
        100 * fit.held_out_error_ratio_mean, fit.held_out, 100 * limits.held_out_error_max)));
  }
  fit.reason +=
      text_of("; %.2f %% mean on %zu steps held out (%.2f %% at the 90th percentile)",
              100 * fit.held_out_error_ratio_mean, fit.held_out, 100 * fit.held_out_error_ratio_p90);
  return fit;
}

}  // namespace trimtab::policy
