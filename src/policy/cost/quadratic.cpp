#include "policy/cost/quadratic.h"

#include <cmath>

#include "base/check.h"

namespace trimtab::policy {

namespace {

using Wide = unsigned __int128;  // pair * q * (2c + q) passes 2^63 for long contexts on slow machines

constexpr std::int64_t kCoefficientMax = 1'000'000'000'000;
constexpr std::int64_t kTokensMax = std::int64_t{1} << 32;

/// 2000 x the cost in ns, before it is floored.
Wide doubled_ps(std::int64_t token_ps, std::int64_t pair_ps, std::int64_t q, std::int64_t c) {
  return static_cast<Wide>(q) * static_cast<Wide>(2 * token_ps) +
         static_cast<Wide>(pair_ps) * static_cast<Wide>(q) * static_cast<Wide>(2 * c + q);
}

std::int64_t to_ns(Wide doubled) {
  // One machine division in the common case; a 128-bit one costs ten times as much.
  if ((doubled >> 64) == 0) return static_cast<std::int64_t>(static_cast<std::uint64_t>(doubled) / 2000);
  const Wide ns = doubled / 2000;
  return ns > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(ns);
}

std::int64_t solve(std::int64_t token_ps, std::int64_t pair_ps, std::int64_t budget_ns, std::int64_t c,
                   std::int64_t q_max) {
  if (budget_ns < 0 || q_max <= 0) return 0;
  // floor(x / 2000) <= B is x <= 2000 B + 1999: from here on no division.
  const Wide limit = static_cast<Wide>(budget_ns) * 2000 + 1999;
  if (doubled_ps(token_ps, pair_ps, q_max, c) <= limit) return q_max;
  // pair q^2 + 2 b q = limit, in the form that does not cancel.
  const double b = static_cast<double>(token_ps) + static_cast<double>(pair_ps) * static_cast<double>(c);
  const double x = static_cast<double>(limit);
  std::int64_t q = static_cast<std::int64_t>(x / (b + std::sqrt(b * b + static_cast<double>(pair_ps) * x)));
  if (q > q_max) q = q_max;
  // Rounding leaves the root at most a token off: put it right in integers.
  while (q > 0 && doubled_ps(token_ps, pair_ps, q, c) > limit) --q;
  while (doubled_ps(token_ps, pair_ps, q + 1, c) <= limit) ++q;
  return q;
}

void check(std::int64_t q, std::int64_t c) {
  TRIMTAB_CHECK(q >= 0 && c >= 0 && q <= kTokensMax && c <= kTokensMax, "q or c is no token count");
}

}  // namespace

QuadraticForm::QuadraticForm(const model::QuadraticCost& cost)
    : token_ps_(cost.token_ps), pair_ps_(cost.pair_ps) {
  TRIMTAB_CHECK(
      token_ps_ >= 0 && token_ps_ <= kCoefficientMax && pair_ps_ >= 0 && pair_ps_ <= kCoefficientMax,
      "a coefficient of the quadratic is outside [0, 1e12] ps");
}

std::int64_t QuadraticForm::attention_ns(std::int64_t q, std::int64_t c) const {
  check(q, c);
  return to_ns(doubled_ps(0, pair_ps_, q, c));
}

std::int64_t QuadraticForm::whole_ns(std::int64_t q, std::int64_t c) const {
  check(q, c);
  return to_ns(doubled_ps(token_ps_, pair_ps_, q, c));
}

std::int64_t QuadraticForm::solve_attention(std::int64_t budget_ns, std::int64_t c,
                                            std::int64_t q_max) const {
  check(q_max < 0 ? 0 : q_max, c);
  return solve(0, pair_ps_, budget_ns, c, q_max);
}

std::int64_t QuadraticForm::solve_whole(std::int64_t budget_ns, std::int64_t c, std::int64_t q_max) const {
  check(q_max < 0 ? 0 : q_max, c);
  return solve(token_ps_, pair_ps_, budget_ns, c, q_max);
}

}  // namespace trimtab::policy
