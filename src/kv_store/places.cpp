#include "kv_store/places.h"

#include <fmt/format.h>

#include <algorithm>

namespace trimtab::kv_store {

base::Result<PlaceMap> PlaceMap::make(std::uint32_t targets, std::span<const std::uint32_t> racks) {
  if (targets == 0 || targets > placement::kNodesMost)
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} targets; a store has 1 to {}", targets, placement::kNodesMost),
                      "kv_store");
  if (targets >= placement::kNodesLeast) {
    auto map = placement::make_map(targets, racks);
    if (!map) return tl::unexpected<base::Error>(map.error());
    return PlaceMap(std::move(*map));
  }
  placement::StripeMap map;
  map.nodes = targets;
  map.how = fmt::format("twelve shards around {} targets", targets);
  for (std::uint32_t group = 0; group < targets; ++group) {
    Places places{};
    for (std::uint32_t s = 0; s < kShards; ++s) places[s] = static_cast<TargetId>((group + s) % targets);
    map.groups.push_back(places);
  }
  return PlaceMap(std::move(map));
}

std::uint32_t PlaceMap::losses() const {
  const std::uint32_t each = (kShards + map_.nodes - 1) / map_.nodes;
  return kv_code::kParity / each;
}

base::Result<PlaceMap::Without> PlaceMap::without(std::span<const TargetId> dead) const {
  const auto lost = static_cast<std::uint32_t>(dead.size());
  if (map_.nodes < placement::kNodesLeast + lost)
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} of {} targets given up leaves fewer than {} for a block's shards: put "
                                  "a new target in the old one's place instead",
                                  lost, map_.nodes, placement::kNodesLeast),
                      "kv_store");
  auto plan = placement::plan_rebuild(map_, dead);
  if (!plan) return tl::unexpected<base::Error>(plan.error());
  placement::StripeMap map = map_;
  ++map.version;
  for (const placement::GroupRebuild& group : plan->groups)
    for (const auto& lost_shard : group.lost) map.groups[group.group][lost_shard.shard] = lost_shard.spare;
  return Without{PlaceMap(std::move(map)), std::move(*plan)};
}

}  // namespace trimtab::kv_store
