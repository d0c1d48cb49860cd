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

/// Two versions during the copying. A shard is read where the older map says until it was copied, and its old
/// copy stays until the older version is retired, so a reader with either map finds every shard at all times.
class Transition {
 public:
  explicit Transition(MapChange change);

  /// Where writers of new blocks put a shard, and readers look first.
  NodeId place(std::uint32_t group, std::uint8_t shard) const { return newer_.groups[group][shard]; }
  /// Whether `node` must have the shard of blocks written before the change.
  bool holds(NodeId node, std::uint32_t group, std::uint8_t shard) const;
  /// The copy is there and durable. Copies may finish in any order, and twice.
  void copied(std::size_t move);
  bool done() const { return left_ == 0; }
  /// Nobody uses the older map any more: the old copies that may be deleted. Only when `done`.
  std::vector<ShardMove> retire();

  const std::vector<ShardMove>& moves() const { return moves_; }
  const StripeMap& newer() const { return newer_; }

 private:
  std::size_t find(std::uint32_t group, std::uint8_t shard) const;

  StripeMap newer_;
  std::vector<ShardMove> moves_;  // by group and shard
  std::vector<bool> copied_;
  std::size_t left_ = 0;
  bool retired_ = false;
};

}  // namespace trimtab::placement
