#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_code/coder.h"
#include "model/ids.h"
#include "policy/placement/rebuild.h"
#include "policy/placement/stripe_map.h"

namespace trimtab::kv_store {

using kv_code::kShards;
using kv_code::ShardSet;
using model::BlockKey;

/// A target's number in its store.
using TargetId = placement::NodeId;
inline constexpr TargetId kNowhere = 0xffff;
/// Which target keeps which shard.
using Places = placement::Stripe;

/// Where the shards of a block are written.
///
/// Twelve targets or more: the stripe groups of policy/placement, every shard at a target of its own: any two
/// targets may be lost. Fewer: the twelve shards go round the targets, each block beginning at another one,
/// so that a target has ceil(12 / targets) of them at most; `losses` says what that survives: one of 6 to 11
/// targets, none of 1 to 5, where the code still mends up to two damaged shards. The form of a shard is the
/// same for any number, so that a fleet may grow by moving shards alone.
class PlaceMap {
 public:
  /// Errors: no target; more than 512; racks that make_map refuses.
  static base::Result<PlaceMap> make(std::uint32_t targets, std::span<const std::uint32_t> racks = {});

  /// The same over these of `all` targets only; the others hold nothing.
  static base::Result<PlaceMap> over(std::span<const TargetId> holders, std::uint32_t all,
                                     std::span<const std::uint32_t> racks = {});

  const Places& of(BlockKey key) const { return map_.groups[map_.group_of(key.high)]; }
  std::uint32_t group_of(BlockKey key) const { return map_.group_of(key.high); }
  /// Targets that may be lost at once with every block still readable.
  std::uint32_t losses() const;
  /// Those that hold something, in order.
  std::vector<TargetId> holders() const;
  const placement::StripeMap& stripes() const { return map_; }

  /// The map once `dead` targets are given up: their shards have new places, and the plan says which
  /// survivors to read for them. Errors: those of plan_rebuild; fewer than twelve targets would be left
  /// (replace the target instead: its shards are then written to the new one in its place).
  struct Without;
  base::Result<Without> without(std::span<const TargetId> dead) const;
  /// `more` targets join, numbered after the present ones. Few shards move where there were twelve or more.
  base::Result<PlaceMap> wider(std::uint32_t more, std::span<const std::uint32_t> racks = {}) const;
  /// `leaving` hold nothing any more. Errors: as `without`.
  base::Result<PlaceMap> drained(std::span<const TargetId> leaving) const;

  explicit PlaceMap(placement::StripeMap map) : map_(std::move(map)) {}

 private:
  base::Result<std::vector<TargetId>> staying(std::span<const TargetId> going) const;
  placement::StripeMap map_;
};

struct PlaceMap::Without {
  PlaceMap map;
  placement::RebuildPlan plan;
};

}  // namespace trimtab::kv_store
