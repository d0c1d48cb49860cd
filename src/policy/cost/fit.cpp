#include "policy/cost/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "policy/cost/cost_model.h"

namespace trimtab::policy {

namespace {

constexpr int kTerms = 3;  // fixed, token, pair
using Row = std::array<double, kTerms>;

/// What a step's time is linear in: 1, tokens, query-key pairs.
Row features(const StepSample& sample) {
  Row row{1.0, 0.0, 0.0};
  for (const SampleChunk& chunk : sample.chunks) {
    const auto q = static_cast<double>(chunk.tokens.value);
    row[1] += q;
    row[2] += q * (static_cast<double>(chunk.computed.value) + q / 2);
  }
  return row;
}

/// Solves the normal equations of the terms in `subset`, by elimination with pivoting; none when singular.
std::optional<Row> solve_subset(std::array<Row, kTerms> matrix, Row right, unsigned subset) {
  for (int i = 0; i < kTerms; ++i) {
    if (subset >> i & 1U) continue;
    // A term that is left out has the equation x = 0.
    for (int j = 0; j < kTerms; ++j) matrix[i][j] = matrix[j][i] = 0;
    matrix[i][i] = 1;
    right[i] = 0;
  }
  for (int column = 0; column < kTerms; ++column) {
    int pivot = column;
    for (int row = column + 1; row < kTerms; ++row) {
      if (std::abs(matrix[row][column]) > std::abs(matrix[pivot][column])) pivot = row;
    }
    if (std::abs(matrix[pivot][column]) < 1e-12) return std::nullopt;
    std::swap(matrix[pivot], matrix[column]);
    std::swap(right[pivot], right[column]);
    for (int row = 0; row < kTerms; ++row) {
      if (row == column) continue;
      const double factor = matrix[row][column] / matrix[column][column];
      for (int k = column; k < kTerms; ++k) matrix[row][k] -= factor * matrix[column][k];
      right[row] -= factor * right[column];
    }
  }
  Row solution{};
  for (int i = 0; i < kTerms; ++i) solution[i] = right[i] / matrix[i][i];
  return solution;
}

struct Problem {
  std::vector<Row> rows;  // features / actual, scaled: the model should give 1 for each
  Row scale{};
};

Problem weigh(std::span<const StepSample> samples) {
  Problem problem;
  for (const StepSample& sample : samples) {
    Row row = features(sample);
    for (double& value : row) value /= static_cast<double>(sample.actual.value);
    problem.rows.push_back(row);
    for (int i = 0; i < kTerms; ++i) problem.scale[i] = std::max(problem.scale[i], row[i]);
  }
  for (Row& row : problem.rows) {
    for (int i = 0; i < kTerms; ++i) row[i] = problem.scale[i] > 0 ? row[i] / problem.scale[i] : 0;
  }
  return problem;
}

/// Coefficients in ns per feature.
Row best_subset(const Problem& problem, unsigned& kept) {
  std::array<Row, kTerms> matrix{};
  Row right{};
  for (const Row& row : problem.rows) {
    for (int i = 0; i < kTerms; ++i) {
      right[i] += row[i];
      for (int j = 0; j < kTerms; ++j) matrix[i][j] += row[i] * row[j];
    }
  }
  Row best{};
  double best_error = std::numeric_limits<double>::infinity();
  for (unsigned subset = 0; subset < 1U << kTerms; ++subset) {
    const auto solution = solve_subset(matrix, right, subset);
    if (!solution || std::any_of(solution->begin(), solution->end(), [](double x) { return x < 0; }))
      continue;
    double error = 0;
    for (const Row& row : problem.rows) {
      double residual = 1;
      for (int i = 0; i < kTerms; ++i) residual -= (*solution)[i] * row[i];
      error += residual * residual;
    }
    if (error < best_error) {
      best_error = error;
      best = *solution;
      kept = subset;
    }
  }
  for (int i = 0; i < kTerms; ++i) best[i] = problem.scale[i] > 0 ? best[i] / problem.scale[i] : 0;
  return best;
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

}  // namespace

base::Result<QuadraticFit> fit_quadratic(std::span<const StepSample> samples) {
  TRIMTAB_TRY(check(samples));
  unsigned kept = 0;
  const Row ns = best_subset(weigh(samples), kept);
  QuadraticFit fit;
  const auto whole = [](double value) { return std::llround(std::min(value, 1e12)); };
  fit.cost = {whole(ns[0]), whole(ns[1] * 1000), whole(ns[2] * 1000)};
  fit.samples = samples.size();

  // The error is that of the integers that will be used, not of the doubles.
  const CostModel model(fit.cost, model::QuotaScope::kWholeStep);
  for (const StepSample& sample : samples) {
    base::Nanos predicted = model.fixed();
    for (const SampleChunk& chunk : sample.chunks) {
      predicted += model.cost(chunk.tokens, chunk.computed, chunk.tokens + chunk.computed);
    }
    const double error = std::abs(static_cast<double>((predicted - sample.actual).value)) /
                         static_cast<double>(sample.actual.value);
    fit.error_ratio_mean += error / static_cast<double>(samples.size());
    fit.error_ratio_worst = std::max(fit.error_ratio_worst, error);
  }
  char text[200];
  std::snprintf(
      text, sizeof text, "kept%s%s%s of fixed, token, pair; error %.2f %% mean, %.2f %% worst of %zu steps",
      (kept & 1U) != 0 ? " fixed" : "", (kept & 2U) != 0 ? " token" : "", (kept & 4U) != 0 ? " pair" : "",
      100 * fit.error_ratio_mean, 100 * fit.error_ratio_worst, samples.size());
  fit.reason = text;
  return fit;
}

}  // namespace trimtab::policy
