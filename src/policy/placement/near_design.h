#pragma once

#include <cstdint>
#include <span>

#include "policy/placement/designs.h"

namespace trimtab::placement {

/// Cyclic near design: m base blocks, each taken through all shifts mod `nodes`, so that every node is in
/// exactly 12 m groups and two nodes share as many groups as their difference occurs in the base blocks. Only
/// the nodes / 2 difference counts must be levelled, by threshold accepting over single elements at O(11) a
/// move. `rack_count` > 1: node i stands in rack i mod rack_count (which divides `nodes`); a base block then
/// takes at most `per_rack` elements of one residue, and so does every shift of it.
///
/// Cost: 0.1 to 0.5 s; at most about 110 groups per pair of nodes, fewer beyond 200 nodes. Weakness: counts
/// level to within one or two, never provably to zero. Integers only: the same on every machine.
Design cyclic_near_design(std::uint32_t nodes, std::uint32_t rack_count = 1,
                          std::uint32_t per_rack = kShards);

/// For racks of unequal size: starts from the cyclic form and exchanges members between groups, so that every
/// node keeps its number of groups, until no rack holds more than `per_rack` shards of a group and the pairs
/// are as level as a bounded search makes them. Every rack must hold at most per_rack / 12 of the nodes.
Design racked_near_design(std::span<const std::uint32_t> racks, std::uint32_t per_rack);

}  // namespace trimtab::placement
