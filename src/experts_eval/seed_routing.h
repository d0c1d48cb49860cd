#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace trimtab::experts_eval {

/// The routing of the handbook's simulation (system facts, section 6): 256 experts in 8 groups; a token's
/// scores are uniform + 0.15 x bias; it keeps the 4 groups with the best sums of two, then its top 8 experts
/// in them. Reproduces numpy's default_rng(0) bit for bit: PCG64's state after the 256 normal draws of the
/// biases, and those, are stored.
struct SeedRouting {
  static constexpr std::int32_t kExperts = 256, kGroups = 8, kGroupsKept = 4, kTopK = 8, kTokens = 20000;

  std::vector<std::array<std::int32_t, kTopK>> tokens;  // each token's experts, highest score first
  std::vector<std::int32_t> totals;                     // tokens per expert
};

SeedRouting seed_routing();

}  // namespace trimtab::experts_eval
