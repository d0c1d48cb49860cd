#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/cost/fit.h"

/// Inside the fit: weighted least squares over the three terms, with coefficients kept >= 0.
namespace trimtab::policy::fit_terms {

constexpr std::size_t kTerms = 3;  // fixed, token, pair
using Row = std::array<double, kTerms>;

/// What a step's time is linear in: 1, tokens, query-key pairs.
Row features(const StepSample& sample);

/// Steps as rows of features / actual, so that a perfect model gives 1 for each and residuals are relative
/// errors; each column scaled to at most 1, which keeps the normal equations tame.
struct Problem {
  std::vector<Row> rows;
  Row scale{};
};
Problem weigh(std::span<const StepSample> samples);

/// 1 - prediction / actual.
inline double residual(const Row& row, const Row& coefficients) {
  double error = 1;
  for (std::size_t i = 0; i < kTerms; ++i) error -= coefficients[i] * row[i];
  return error;
}

struct Solution {
  Row coefficients{};  // in the problem's scale
  unsigned kept = 0;   // bit i: term i is not forced to 0
};
/// Of the eight subsets of terms the feasible one (no coefficient below 0) with the least squared error over
/// the rows that `used` names.
Solution solve(const Problem& problem, std::span<const std::uint32_t> used);

/// How much of a term's variation over `used` the terms of the set `others` (bit i: term i) do not explain,
/// 0 ... 1; 0: it cannot be told from them.
double own_variation(const Problem& problem, std::span<const std::uint32_t> used, std::size_t term,
                     unsigned others);

}  // namespace trimtab::policy::fit_terms
