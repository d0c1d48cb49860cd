#include "kv_store/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "policy/placement/resize.h"

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
  map.racks.assign(racks.begin(), racks.end());  // for when it grows: fewer than twelve cannot keep the rule
  map.how = fmt::format("twelve shards around {} targets", targets);
  for (std::uint32_t group = 0; group < targets; ++group) {
    Places places{};
    for (std::uint32_t s = 0; s < kShards; ++s) places[s] = static_cast<TargetId>((group + s) % targets);
    map.groups.push_back(places);
  }
  return PlaceMap(std::move(map));
}

base::Result<PlaceMap> PlaceMap::over(std::span<const TargetId> holders, std::uint32_t all,
                                      std::span<const std::uint32_t> racks) {
  std::vector<std::uint32_t> of_holders;
  for (const TargetId id : holders)
    if (!racks.empty()) of_holders.push_back(racks[id]);
  auto made = make(static_cast<std::uint32_t>(holders.size()), of_holders);
  if (!made) return made;
  made->map_.nodes = all;
  made->map_.racks.assign(racks.begin(), racks.end());
  for (Places& group : made->map_.groups)
    for (TargetId& place : group) place = holders[place];
  return made;
}

std::vector<TargetId> PlaceMap::holders() const {
  const std::vector<std::uint32_t> shards = placement::shards_of(map_);
  std::vector<TargetId> holders;
  for (std::uint32_t n = 0; n < map_.nodes; ++n)
    if (shards[n] > 0) holders.push_back(static_cast<TargetId>(n));
  return holders;
}

std::uint32_t PlaceMap::losses() const {
  const auto count = static_cast<std::uint32_t>(holders().size());
  return kv_code::kParity / ((kShards + count - 1) / count);
}

/// Who holds shards once `going` do not.
base::Result<std::vector<TargetId>> PlaceMap::staying(std::span<const TargetId> going) const {
  const std::vector<TargetId> before = holders();
  std::vector<TargetId> left;
  for (const TargetId id : before)
    if (std::ranges::find(going, id) == going.end()) left.push_back(id);
  const bool promised = before.size() >= placement::kNodesLeast;
  if (left.empty() || (promised && left.size() < placement::kNodesLeast))
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("{} of the {} targets that hold shards would stay, and {} is the least: put a "
                    "new target in the old one's place, or add one first",
                    left.size(), before.size(), promised ? placement::kNodesLeast : 1),
        "kv_store");
  return left;
}

base::Result<PlaceMap::Without> PlaceMap::without(std::span<const TargetId> dead) const {
  const auto left = staying(dead);
  if (!left) return tl::unexpected<base::Error>(left.error());
  if (left->size() < placement::kNodesLeast) {
    auto map = over(*left, map_.nodes, map_.racks);
    if (!map) return tl::unexpected<base::Error>(map.error());
    map->map_.version = map_.version + 1;
    return Without{std::move(*map), {}};
  }
  // Targets that hold nothing left before: they must not be given anything.
  std::vector<TargetId> gone;
  for (std::uint32_t n = 0; n < map_.nodes; ++n)
    if (std::ranges::find(*left, n) == left->end()) gone.push_back(static_cast<TargetId>(n));
  auto plan = placement::plan_rebuild(map_, gone);
  if (!plan) return tl::unexpected<base::Error>(plan.error());
  placement::StripeMap map = map_;
  ++map.version;
  for (const placement::GroupRebuild& group : plan->groups)
    for (const auto& lost_shard : group.lost) map.groups[group.group][lost_shard.shard] = lost_shard.spare;
  return Without{PlaceMap(std::move(map)), std::move(*plan)};
}

base::Result<PlaceMap> PlaceMap::wider(std::uint32_t more, std::span<const std::uint32_t> racks) const {
  std::vector<TargetId> all = holders();
  if (all.size() >= placement::kNodesLeast) {
    auto change = placement::expand(map_, more, racks);
    if (!change) return tl::unexpected<base::Error>(change.error());
    return PlaceMap(std::move(change->map));
  }
  for (std::uint32_t n = 0; n < more; ++n) all.push_back(static_cast<TargetId>(map_.nodes + n));
  std::vector<std::uint32_t> of_all = map_.racks;
  of_all.insert(of_all.end(), racks.begin(), racks.end());
  auto map = over(all, map_.nodes + more, of_all);
  if (map) map->map_.version = map_.version + 1;
  return map;
}

base::Result<PlaceMap> PlaceMap::drained(std::span<const TargetId> leaving) const {
  const auto left = staying(leaving);
  if (!left) return tl::unexpected<base::Error>(left.error());
  if (left->size() >= placement::kNodesLeast) {
    auto change = placement::drain(map_, leaving);
    if (!change) return tl::unexpected<base::Error>(change.error());
    return PlaceMap(std::move(change->map));
  }
  auto map = over(*left, map_.nodes, map_.racks);
  if (map) map->map_.version = map_.version + 1;
  return map;
}

}  // namespace trimtab::kv_store
