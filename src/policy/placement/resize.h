#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/placement/stripe_map.h"

namespace trimtab::placement {

struct ShardMove {
  std::uint32_t group = 0;
  std::uint8_t shard = 0;
  NodeId from = 0, to = 0;
};

/// A new version of a map, and what must be copied for it. Groups keep their numbers: a block stays in its
/// group for life.
struct MapChange {
  StripeMap map;
  std::vector<ShardMove> moves;
};

/// `more` nodes join, numbered after the present ones; `racks` of the new ones when the map has racks. Only
/// as many shards move as the new nodes must hold, each from a node that has too many: no other map of equal
/// shares moves fewer. Of a giver's groups the one is taken whose members meet the new node least.
/// Cost: O(shards moved x 256 x 11). Weakness: pairs stay level to a few per cent, not exactly; a map made
/// anew is more level and moves nearly everything.
base::Result<MapChange> expand(const StripeMap& map, std::uint32_t more,
                               std::span<const std::uint32_t> racks = {});

/// The shards of the `leaving` nodes go to the others, as evenly as can be; nothing else moves. The nodes
/// keep their numbers and hold nothing. Errors: fewer than twelve nodes would stay, or the racks left cannot
/// keep the rule.
base::Result<MapChange> drain(const StripeMap& map, std::span<const NodeId> leaving);

}  // namespace trimtab::placement
