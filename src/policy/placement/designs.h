#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/placement/stripe_map.h"

namespace trimtab::placement {

struct Design {
  std::vector<Stripe> groups;
  std::string how;
};

/// A balanced incomplete block design with blocks of 12 over `nodes` points, where one is known by
/// construction: every two points share exactly as many blocks as any other two. Which, and how:
///   13           all 12-subsets
///   16           complements of the lines of the affine plane of order 4
///   24           Hadamard 3-design of the residues mod 23: the blocks and their complements
///   45           McFarland's difference set in Z3 x Z3 x Z5: four lines of the plane of order 3, one each
///   133          projective plane of order 11
///   q = 1 mod 11 (prime, (q - 1) / 11 even) {0} and a coset of the subgroup of order 11, one of each coset
///   and
///                its negative, developed: 23, 67, 89, 199 ...
///   q = 1 mod 12 (prime or its square) the cosets of the subgroup of order 12, developed: 25, 37, 49, 61 ...
/// Source: the constructions are classical (Colbourn and Dinitz, Handbook of Combinatorial Designs).
std::optional<Design> exact_design(std::uint32_t nodes);

}  // namespace trimtab::placement
