#include "policy/cost/fit_terms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace trimtab::policy::fit_terms {

namespace {

using Matrix = std::array<Row, kTerms>;

/// Solves the normal equations of the terms in `subset`, by elimination with pivoting; none when singular.
std::optional<Row> solve_subset(Matrix matrix, Row right, unsigned subset) {
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (subset >> i & 1U) continue;
    // A term that is left out has the equation x = 0.
    for (std::size_t j = 0; j < kTerms; ++j) matrix[i][j] = matrix[j][i] = 0;
    matrix[i][i] = 1;
    right[i] = 0;
  }
  for (std::size_t column = 0; column < kTerms; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column + 1; row < kTerms; ++row) {
      if (std::abs(matrix[row][column]) > std::abs(matrix[pivot][column])) pivot = row;
    }
    if (std::abs(matrix[pivot][column]) < 1e-12) return std::nullopt;
    std::swap(matrix[pivot], matrix[column]);
    std::swap(right[pivot], right[column]);
    for (std::size_t row = 0; row < kTerms; ++row) {
      if (row == column) continue;
      const double factor = matrix[row][column] / matrix[column][column];
      for (std::size_t k = column; k < kTerms; ++k) matrix[row][k] -= factor * matrix[column][k];
      right[row] -= factor * right[column];
    }
  }
  Row solution{};
  for (std::size_t i = 0; i < kTerms; ++i) solution[i] = right[i] / matrix[i][i];
  return solution;
}

struct Normal {
  Matrix matrix{};
  Row right{};
};

Normal normal_equations(const Problem& problem, std::span<const std::uint32_t> used) {
  Normal normal;
  for (const std::uint32_t at : used) {
    const Row& row = problem.rows[at];
    for (std::size_t i = 0; i < kTerms; ++i) {
      normal.right[i] += row[i];
      for (std::size_t j = 0; j < kTerms; ++j) normal.matrix[i][j] += row[i] * row[j];
    }
  }
  return normal;
}

}  // namespace

Row features(const StepSample& sample) {
  Row row{1.0, 0.0, 0.0};
  for (const SampleChunk& chunk : sample.chunks) {
    const auto q = static_cast<double>(chunk.tokens.value);
    row[1] += q;
    row[2] += q * (static_cast<double>(chunk.computed.value) + q / 2);
  }
  return row;
}

Problem weigh(std::span<const StepSample> samples) {
  Problem problem;
  problem.rows.reserve(samples.size());
  for (const StepSample& sample : samples) {
    Row row = features(sample);
    for (std::size_t i = 0; i < kTerms; ++i) {
      row[i] /= static_cast<double>(sample.actual.value);
      problem.scale[i] = std::max(problem.scale[i], row[i]);
    }
    problem.rows.push_back(row);
  }
  for (Row& row : problem.rows) {
    for (std::size_t i = 0; i < kTerms; ++i) row[i] = problem.scale[i] > 0 ? row[i] / problem.scale[i] : 0;
  }
  return problem;
}

Solution solve(const Problem& problem, std::span<const std::uint32_t> used) {
  const Normal normal = normal_equations(problem, used);
  Solution best;
  double best_error = std::numeric_limits<double>::infinity();
  for (unsigned subset = 0; subset < 1U << kTerms; ++subset) {
    const auto solution = solve_subset(normal.matrix, normal.right, subset);
    if (!solution || std::any_of(solution->begin(), solution->end(), [](double x) { return x < 0; }))
      continue;
    double error = 0;
    for (const std::uint32_t at : used) {
      const double r = residual(problem.rows[at], *solution);
      error += r * r;
    }
    if (error < best_error) {
      best_error = error;
      best = {*solution, subset};
    }
  }
  return best;
}

double own_variation(const Problem& problem, std::span<const std::uint32_t> used, std::size_t term,
                     unsigned others) {
  // Regress the term's column on theirs: what is left of its squares, as a share.
  const Normal normal = normal_equations(problem, used);
  const auto explained = solve_subset(normal.matrix, normal.matrix[term], others);
  if (!explained || normal.matrix[term][term] <= 0) return 0;
  double left = normal.matrix[term][term];
  for (std::size_t i = 0; i < kTerms; ++i)
    if ((others >> i & 1U) != 0) left -= (*explained)[i] * normal.matrix[term][i];
  return std::max(left, 0.0) / normal.matrix[term][term];
}

}  // namespace trimtab::policy::fit_terms
