#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace trimtab::placement {

/// Ten data and two parity shards (system facts, section 11).
inline constexpr std::size_t kDataShards = 10;
inline constexpr std::size_t kShards = 12;

using NodeId = std::uint16_t;
/// Which node keeps which shard; all different.
using Stripe = std::array<NodeId, kShards>;

/// Which storage nodes keep the shards of a block. A block belongs to the stripe group `key mod groups`, and
/// a group names twelve different nodes. Every node is in equally many groups, and every two nodes share
/// nearly equally many, so that when one dies all the others rebuild the same amount (a balanced incomplete
/// block design: system facts, section 11).
struct StripeMap {
  std::uint32_t version = 1;
  std::uint32_t nodes = 0;
  std::vector<std::uint32_t> racks;  // of each node; empty: not known
  std::vector<Stripe> groups;
  std::string how;  // "projective plane of order 11", "cyclic near design, 92 base blocks"

  /// Of a key's high bits, which no hash table of ours uses.
  std::uint32_t group_of(std::uint64_t key_high) const {
    return static_cast<std::uint32_t>(key_high % groups.size());
  }
};

/// In how many groups a node is, and in how many two nodes are together; of the nodes that hold something.
struct MapBalance {
  std::uint32_t shards_least = 0, shards_most = 0;
  std::uint32_t pairs_least = 0, pairs_most = 0;  // over pairs of nodes in different racks
  std::uint32_t rack_most = 1;                    // shards of one group in one rack, at most
  bool exact() const { return shards_least == shards_most && pairs_least == pairs_most; }
};
MapBalance balance(const StripeMap& map);
/// Shards of each node; 0 for a node that was drained.
std::vector<std::uint32_t> shards_of(const StripeMap& map);

/// How many shards of one group may stand in one rack: ceil(12 / racks) with six racks or more, one from
/// twelve on. With fewer than six the loss of a rack loses data anyway, and it is what the biggest rack must
/// hold; 12 when racks are not known.
std::uint32_t per_rack(const StripeMap& map);

/// [nodes x nodes] row by row: groups that two nodes share; the diagonal holds the node's own groups.
std::vector<std::uint32_t> pair_counts(const StripeMap& map);

/// A promise between rooms: nodes in range, twelve different ones in each group, racks for all or for none.
base::Status check(const StripeMap& map);

inline constexpr std::uint32_t kNodesLeast = 12, kNodesMost = 512;

/// A map for so many nodes: an exact design where one is known (designs.h), otherwise a cyclic near design;
/// with racks, never more than `per_rack` shards of a group in one: at most two from six racks on, so that a
/// whole rack may be lost. Deterministic; under a second at 512 nodes. Errors: fewer than 12 or more than 512
/// nodes; racks not given for every node; a rack too big for the rule.
base::Result<StripeMap> make_map(std::uint32_t nodes, std::span<const std::uint32_t> racks = {});

}  // namespace trimtab::placement
