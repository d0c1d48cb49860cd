#include "policy/placement/rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "policy/placement/flow.h"

namespace trimtab::placement {
namespace {

/// The groups that lost something, and how often each survivor would be read if nobody were skipped.
struct Damage {
  std::vector<bool> dead;
  std::vector<GroupRebuild> groups;
  std::vector<std::uint32_t> present;
};

base::Result<Damage> assess(const StripeMap& map, std::span<const NodeId> dead) {
  Damage damage{std::vector<bool>(map.nodes, false), {}, std::vector<std::uint32_t>(map.nodes, 0)};
  for (const NodeId node : dead) {
    if (node >= map.nodes) {
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("node {} is not in the map, which has 0 to {}", node, map.nodes - 1),
                        "placement");
    }
    damage.dead[node] = true;
  }
  for (std::uint32_t g = 0; g < map.groups.size(); ++g) {
    GroupRebuild rebuild{g, {}, {}};
    for (std::uint8_t s = 0; s < kShards; ++s)
      if (damage.dead[map.groups[g][s]]) rebuild.lost.push_back({s, 0});
    if (rebuild.lost.empty()) continue;
    if (rebuild.lost.size() > kShards - kDataShards) {
      return base::fail(base::Code::kDataLoss,
                        fmt::format("group {} lost {} of 12 shards and only 2 can be rebuilt: its blocks "
                                    "must be computed again",
                                    g, rebuild.lost.size()),
                        "placement");
    }
    for (const NodeId node : map.groups[g]) damage.present[node] += damage.dead[node] ? 0 : 1;
    damage.groups.push_back(std::move(rebuild));
  }
  return damage;
}

/// Chooses skips so that no node is read more than `most` times; false when that cannot be.
bool skip(const StripeMap& map, Damage& damage, std::int64_t most) {
  const auto groups = static_cast<std::uint32_t>(damage.groups.size());
  const std::uint32_t source = groups + map.nodes, sink = source + 1;
  Flow flow(sink + 1);
  std::int64_t wanted = 0;
  for (std::uint32_t n = 0; n < map.nodes; ++n) {
    const std::int64_t over = std::max<std::int64_t>(0, std::int64_t{damage.present[n]} - most);
    if (over > 0) flow.edge(groups + n, sink, over);
    wanted += over;
  }
  struct Choice {
    std::size_t edge = 0;
    std::uint32_t group = 0;
    std::uint8_t shard = 0;
  };
  std::vector<Choice> choices;
  for (std::uint32_t g = 0; g < groups; ++g) {
    damage.groups[g].skipped.reset();
    if (damage.groups[g].lost.size() > 1) continue;
    flow.edge(source, g, 1);
    const Stripe& members = map.groups[damage.groups[g].group];
    for (std::uint8_t s = 0; s < kShards; ++s)
      if (!damage.dead[members[s]]) choices.push_back({flow.edge(g, groups + members[s], 1), g, s});
  }
  if (flow.push(source, sink) < wanted) return false;
  for (const Choice& choice : choices)
    if (flow.flow_of(choice.edge) > 0) damage.groups[choice.group].skipped = choice.shard;
  return true;
}

/// Groups that the flow left alone skip the member that is read most.
void count_reads(const StripeMap& map, Damage& damage, std::vector<std::uint32_t>& reads) {
  reads = damage.present;
  for (const GroupRebuild& group : damage.groups)
    if (group.skipped) --reads[map.groups[group.group][*group.skipped]];
  for (GroupRebuild& group : damage.groups) {
    if (group.skipped || group.lost.size() > 1) continue;
    const Stripe& members = map.groups[group.group];
    for (std::uint8_t s = 0; s < kShards; ++s) {
      if (damage.dead[members[s]]) continue;
      if (!group.skipped || reads[members[s]] > reads[members[*group.skipped]]) group.skipped = s;
    }
    --reads[members[*group.skipped]];
  }
}

/// `taken`: nodes that a lost shard of the group goes to already.
bool may_hold(const StripeMap& map, const Damage& damage, const GroupRebuild& group,
              std::span<const NodeId> taken, NodeId node, std::uint32_t rack_most) {
  if (damage.dead[node]) return false;
  std::uint32_t in_rack = 0;
  const auto beside = [&](NodeId other) {
    if (!map.racks.empty() && map.racks[other] == map.racks[node]) ++in_rack;
    return other == node;
  };
  for (const NodeId member : map.groups[group.group])
    if (!damage.dead[member] && beside(member)) return false;
  for (const NodeId other : taken)
    if (beside(other)) return false;
  return in_rack < rack_most;
}

tl::unexpected<base::Error> no_spare(const GroupRebuild& group) {
  return base::fail(base::Code::kResourceExhausted,
                    fmt::format("no node can take shard {} of group {}: every survivor holds one of its "
                                "shards, or its rack does; add a node",
                                group.lost.front().shard, group.group),
                    "placement");
}

/// Groups that lost two: each shard to the node written least so far.
base::Status spares_of_pairs(const StripeMap& map, Damage& damage, std::vector<std::uint32_t>& writes) {
  const std::uint32_t rack_most = per_rack(map);
  for (GroupRebuild& group : damage.groups) {
    if (group.lost.size() == 1) continue;
    std::vector<NodeId> taken;
    for (GroupRebuild::Lost& lost : group.lost) {
      std::optional<NodeId> best;
      // From another place each time, so that equals take turns.
      for (std::uint32_t i = 0; i < map.nodes; ++i) {
        const auto node = static_cast<NodeId>((group.group + i) % map.nodes);
        if (best && writes[node] >= writes[*best]) continue;
        if (may_hold(map, damage, group, taken, node, rack_most)) best = node;
      }
      if (!best) return no_spare(group);
      lost.spare = *best;
      taken.push_back(*best);
      ++writes[*best];
    }
  }
  return {};
}

/// Groups that lost one, by maximum flow: no node is written more than `most` times in all. How many of them
/// found a place.
std::int64_t spares_of_singles(const StripeMap& map, Damage& damage, const std::vector<std::uint32_t>& writes,
                               std::int64_t most) {
  const auto groups = static_cast<std::uint32_t>(damage.groups.size());
  const std::uint32_t source = groups + map.nodes, sink = source + 1;
  const std::uint32_t rack_most = per_rack(map);
  Flow flow(sink + 1);
  for (std::uint32_t n = 0; n < map.nodes; ++n)
    flow.edge(groups + n, sink, std::max<std::int64_t>(0, most - std::int64_t{writes[n]}));
  std::vector<std::tuple<std::size_t, std::uint32_t, NodeId>> choices;
  for (std::uint32_t g = 0; g < groups; ++g) {
    if (damage.groups[g].lost.size() > 1) continue;
    flow.edge(source, g, 1);
    for (std::uint32_t i = 0; i < map.nodes; ++i) {
      const auto node = static_cast<NodeId>((g + i) % map.nodes);
      if (may_hold(map, damage, damage.groups[g], {}, node, rack_most))
        choices.emplace_back(flow.edge(g, groups + node, 1), g, node);
    }
  }
  const std::int64_t placed = flow.push(source, sink);
  for (const auto& [edge, g, node] : choices)
    if (flow.flow_of(edge) > 0) damage.groups[g].lost.front().spare = node;
  return placed;
}

base::Status choose_spares(const StripeMap& map, Damage& damage, std::vector<std::uint32_t>& writes) {
  writes.assign(map.nodes, 0);
  TRIMTAB_TRY(spares_of_pairs(map, damage, writes));
  const std::uint32_t rack_most = per_rack(map);
  std::int64_t singles = 0;
  for (const GroupRebuild& group : damage.groups) {
    if (group.lost.size() > 1) continue;
    ++singles;
    bool fits = false;
    for (std::uint32_t n = 0; n < map.nodes && !fits; ++n)
      fits = may_hold(map, damage, group, {}, static_cast<NodeId>(n), rack_most);
    if (!fits) return no_spare(group);
  }
  const std::int64_t shards = singles + std::accumulate(writes.begin(), writes.end(), std::int64_t{0});
  const std::int64_t alive = std::max<std::int64_t>(1, std::ranges::count(damage.dead, false));
  std::int64_t last = 0;
  const auto fits = [&](std::int64_t most) {
    last = most;
    return spares_of_singles(map, damage, writes, most) == singles;
  };
  // An even part is nearly always enough; every group has a place, so some bound is.
  std::int64_t low = (shards + alive - 1) / alive, high = low;
  for (std::int64_t step = 1; !fits(high); step *= 2) {
    low = high + 1;
    high += step;
  }
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (last != low) fits(low);
  for (const GroupRebuild& group : damage.groups)
    if (group.lost.size() == 1) ++writes[group.lost.front().spare];
  return {};
}

template <class Counted>
double imbalance(const std::vector<std::uint32_t>& loads, const Counted& counted) {
  std::uint64_t sum = 0, nodes = 0, most = 0;
  for (std::size_t n = 0; n < loads.size(); ++n) {
    if (!counted(n)) continue;
    sum += loads[n];
    ++nodes;
    most = std::max<std::uint64_t>(most, loads[n]);
  }
  return sum == 0 ? 1.0 : static_cast<double>(most) * static_cast<double>(nodes) / static_cast<double>(sum);
}

}  // namespace

base::Result<RebuildPlan> plan_rebuild(const StripeMap& map, std::span<const NodeId> dead) {
  TRIMTAB_TRY(check(map));
  auto damage = assess(map, dead);
  if (!damage) return tl::unexpected<base::Error>(damage.error());
  const auto readers = static_cast<std::int64_t>(
      std::ranges::count_if(damage->present, [](std::uint32_t present) { return present > 0; }));
  const auto needed = static_cast<std::int64_t>(damage->groups.size() * kDataShards);
  if (needed > 0) {
    std::int64_t low = (needed + readers - 1) / readers;
    std::int64_t high = std::max<std::int64_t>(low, *std::ranges::max_element(damage->present));
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (skip(map, *damage, middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    skip(map, *damage, low);
  }
  RebuildPlan plan;
  count_reads(map, *damage, plan.reads);
  TRIMTAB_TRY(choose_spares(map, *damage, plan.writes));
  plan.read_imbalance = imbalance(plan.reads, [&](std::size_t n) { return damage->present[n] > 0; });
  plan.write_imbalance = imbalance(plan.writes, [&](std::size_t n) { return !damage->dead[n]; });
  plan.groups = std::move(damage->groups);
  return plan;
}

}  // namespace trimtab::placement
