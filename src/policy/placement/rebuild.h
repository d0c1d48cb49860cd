#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/placement/stripe_map.h"

namespace trimtab::placement {

/// What one group needs after a loss: ten of its survivors are read once, and each lost shard is written to a
/// node that holds none of the group's.
struct GroupRebuild {
  struct Lost {
    std::uint8_t shard = 0;
    NodeId spare = 0;
  };
  std::uint32_t group = 0;
  std::vector<Lost> lost;               // one or two
  std::optional<std::uint8_t> skipped;  // the surviving shard that is not read, when eleven are there
};

struct RebuildPlan {
  std::vector<GroupRebuild> groups;
  std::vector<std::uint32_t> reads, writes;  // shards, by node
  /// Of the nodes that share a group with a lost one: the most read over the mean. 1 when nothing is lost.
  double read_imbalance = 1;
  double write_imbalance = 1;  // of all survivors
};

/// Rebuilds what the `dead` nodes held. Which survivor of eleven is not read is chosen by maximum flow, so
/// that no node is read more than it must; so are the spares, which keep the rack rule, so that none is
/// written more than it must. Errors: a node out of range; more than two shards of a group lost (its blocks
/// cannot be rebuilt: computed again instead); no node left for a spare.
base::Result<RebuildPlan> plan_rebuild(const StripeMap& map, std::span<const NodeId> dead);

}  // namespace trimtab::placement
