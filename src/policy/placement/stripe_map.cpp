#include "policy/placement/stripe_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "policy/placement/designs.h"
#include "policy/placement/near_design.h"

namespace trimtab::placement {
namespace {

tl::unexpected<base::Error> refuse(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "placement");
}

/// Equal racks of `count`: nodes are numbered so that number i stands in rack i mod count.
Design in_equal_racks(std::uint32_t nodes, std::span<const std::uint32_t> racks, std::uint32_t count,
                      std::uint32_t per_rack) {
  std::map<std::uint32_t, std::vector<NodeId>> members;
  for (std::uint32_t n = 0; n < nodes; ++n) members[racks[n]].push_back(static_cast<NodeId>(n));
  std::vector<NodeId> node_of(nodes);
  std::uint32_t rack = 0;
  for (const auto& [name, list] : members) {
    for (std::size_t i = 0; i < list.size(); ++i) node_of[i * count + rack] = list[i];
    ++rack;
  }
  Design design = cyclic_near_design(nodes, count, per_rack);
  for (Stripe& group : design.groups)
    for (NodeId& node : group) node = node_of[node];
  return design;
}

std::map<std::uint32_t, std::uint32_t> rack_sizes(std::span<const std::uint32_t> racks) {
  std::map<std::uint32_t, std::uint32_t> sizes;
  for (const std::uint32_t rack : racks) ++sizes[rack];
  return sizes;
}

base::Result<Design> in_racks(const StripeMap& map) {
  const auto sizes = rack_sizes(map.racks);
  const auto count = static_cast<std::uint32_t>(sizes.size());
  const std::uint32_t most = per_rack(map);
  for (const auto& [rack, size] : sizes) {
    if (size * kShards > most * map.nodes) {
      return refuse(fmt::format(
          "rack {} has {} of {} nodes; with {} racks at most {} of 12 shards may stand in one, so it must "
          "have at most {} nodes: spread the nodes more evenly, or leave the racks out",
          rack, size, map.nodes, count, most, most * map.nodes / kShards));
    }
  }
  const bool equal = std::ranges::all_of(sizes, [&](const auto& r) { return r.second * count == map.nodes; });
  return equal ? in_equal_racks(map.nodes, map.racks, count, most) : racked_near_design(map.racks, most);
}

/// A node shall have so many shards that those who join later can be given equal parts; and ten reads of each
/// of its groups shall divide evenly among the others, which an exact design then levels to the last shard.
std::vector<Stripe> repeated(std::vector<Stripe> groups, std::uint32_t nodes) {
  constexpr std::size_t kShardsLeast = 120;
  const std::size_t shards = groups.size() * kShards / nodes;
  const std::size_t least = (kShardsLeast + shards - 1) / shards;
  std::size_t copies = least;
  while (copies < least + 11 && kDataShards * shards * copies % (nodes - 1) != 0) ++copies;
  if (kDataShards * shards * copies % (nodes - 1) != 0) copies = least;
  const std::vector<Stripe> once = groups;
  for (std::size_t copy = 1; copy < copies; ++copy) groups.insert(groups.end(), once.begin(), once.end());
  return groups;
}

}  // namespace

std::uint32_t per_rack(const StripeMap& map) {
  const auto sizes = rack_sizes(map.racks);
  const auto count = static_cast<std::uint32_t>(sizes.size());
  if (count == 0) return kShards;
  std::uint32_t most = (kShards + count - 1) / count;
  if (count >= 6) return most;
  for (const auto& [rack, size] : sizes)
    most = std::max(most, (size * static_cast<std::uint32_t>(kShards) + map.nodes - 1) / map.nodes);
  return most;
}

std::vector<std::uint32_t> pair_counts(const StripeMap& map) {
  std::vector<std::uint32_t> pairs(std::size_t{map.nodes} * map.nodes, 0);
  for (const Stripe& group : map.groups)
    for (const NodeId a : group)
      for (const NodeId b : group) ++pairs[std::size_t{a} * map.nodes + b];
  return pairs;
}

std::vector<std::uint32_t> shards_of(const StripeMap& map) {
  std::vector<std::uint32_t> shards(map.nodes, 0);
  for (const Stripe& group : map.groups)
    for (const NodeId node : group) ++shards[node];
  return shards;
}

MapBalance balance(const StripeMap& map) {
  const std::vector<std::uint32_t> pairs = pair_counts(map);
  MapBalance out{UINT32_MAX, 0, UINT32_MAX, 0, 1};
  for (std::uint32_t a = 0; a < map.nodes; ++a) {
    const std::uint32_t shards = pairs[std::size_t{a} * map.nodes + a];
    if (shards == 0) continue;
    out.shards_least = std::min(out.shards_least, shards);
    out.shards_most = std::max(out.shards_most, shards);
    for (std::uint32_t b = 0; b < map.nodes; ++b) {
      if (a == b || pairs[std::size_t{b} * map.nodes + b] == 0) continue;
      if (!map.racks.empty() && map.racks[a] == map.racks[b]) continue;
      out.pairs_least = std::min(out.pairs_least, pairs[std::size_t{a} * map.nodes + b]);
      out.pairs_most = std::max(out.pairs_most, pairs[std::size_t{a} * map.nodes + b]);
    }
  }
  if (map.racks.empty()) return out;
  for (const Stripe& group : map.groups) {
    for (const NodeId a : group) {
      const auto same = std::ranges::count_if(group, [&](NodeId b) { return map.racks[a] == map.racks[b]; });
      out.rack_most = std::max(out.rack_most, static_cast<std::uint32_t>(same));
    }
  }
  return out;
}

base::Status check(const StripeMap& map) {
  if (!map.racks.empty() && map.racks.size() != map.nodes)
    return refuse(fmt::format("{} racks are given for {} nodes: one each", map.racks.size(), map.nodes));
  if (map.groups.empty()) return refuse("a stripe map without groups");
  for (std::size_t g = 0; g < map.groups.size(); ++g) {
    Stripe sorted = map.groups[g];
    std::ranges::sort(sorted);
    if (sorted.back() >= map.nodes || std::ranges::adjacent_find(sorted) != sorted.end()) {
      return refuse(fmt::format("group {} names [{}]: twelve different nodes below {} are needed", g,
                                fmt::join(map.groups[g], ", "), map.nodes));
    }
  }
  return {};
}

base::Result<StripeMap> make_map(std::uint32_t nodes, std::span<const std::uint32_t> racks) {
  if (nodes < kNodesLeast || nodes > kNodesMost) {
    return refuse(fmt::format("{} storage nodes: 10+2 shards on different nodes need {} to {}", nodes,
                              kNodesLeast, kNodesMost));
  }
  if (!racks.empty() && racks.size() != nodes)
    return refuse(fmt::format("{} racks are given for {} nodes: one each", racks.size(), nodes));
  StripeMap map{1, nodes, {racks.begin(), racks.end()}, {}, {}};
  Design design;
  if (!racks.empty()) {
    auto racked = in_racks(map);
    if (!racked) return tl::unexpected<base::Error>(racked.error());
    design = std::move(*racked);
  } else if (nodes == kShards) {
    design = {{Stripe{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, "every node in every group"};
  } else if (auto exact = exact_design(nodes)) {
    design = std::move(*exact);
  } else {
    design = cyclic_near_design(nodes);
  }
  map.groups = repeated(std::move(design.groups), nodes);
  map.how = std::move(design.how);
  return map;
}

}  // namespace trimtab::placement
