#pragma once

#include <cstdint>

#include "base/units.h"
#include "model/profile.h"

namespace trimtab::policy {

/// The seeds' quadratic, exact in integers: cost(q, c) = token * q + pair * q * (c + q/2), floored to ns
/// once. Source: system facts, section 2; the split at the quota in closed form instead of DualPath's binary
/// search (arXiv 2602.21548). Cost: one square root. Weakness: it charges every earlier token alike, so it
/// overstates long contexts of models with capped or compressed attention (63 x against 1.12 x at 100,000
/// tokens of V4.1).
class QuadraticForm {
 public:
  /// Coefficients are at most 1e12 ps (checked), token counts at most 2^32.
  explicit QuadraticForm(const model::QuadraticCost& cost);

  std::int64_t attention_ns(std::int64_t q, std::int64_t c) const;
  std::int64_t whole_ns(std::int64_t q, std::int64_t c) const;

  /// The largest q <= q_max with the cost of (q, c) <= budget_ns; 0 when even one token is too much.
  std::int64_t solve_attention(std::int64_t budget_ns, std::int64_t c, std::int64_t q_max) const;
  std::int64_t solve_whole(std::int64_t budget_ns, std::int64_t c, std::int64_t q_max) const;

 private:
  std::int64_t token_ps_;
  std::int64_t pair_ps_;
};

}  // namespace trimtab::policy
