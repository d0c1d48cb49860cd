#include "policy/placement/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "policy/placement/rebuild.h"

namespace trimtab::placement {
namespace {

constexpr std::size_t kCandidates = 256;  // groups of a giver that are looked at

/// A map under change with its counts.
class Resizing {
 public:
  explicit Resizing(StripeMap map)
      : map_(std::move(map)), pairs_(pair_counts(map_)), rack_most_(per_rack(map_)) {
    groups_of_.resize(map_.nodes);
    for (std::uint32_t g = 0; g < map_.groups.size(); ++g)
      for (const NodeId node : map_.groups[g]) groups_of_[node].push_back(g);
  }

  std::size_t shards(NodeId node) const { return groups_of_[node].size(); }
  const std::vector<std::uint32_t>& groups_of(NodeId node) const { return groups_of_[node]; }

  /// Whether `to` may stand where `from` stands in the group.
  bool fits(std::uint32_t group, NodeId from, NodeId to) const {
    std::uint32_t in_rack = 0;
    for (const NodeId member : map_.groups[group]) {
      if (member == to) return false;
      if (member != from && !map_.racks.empty() && map_.racks[member] == map_.racks[to]) ++in_rack;
    }
    return in_rack < rack_most_;
  }

  /// How often `node` meets the group's members besides `from`, less how often `from` does.
  std::int64_t meetings(std::uint32_t group, NodeId from, NodeId node) const {
    std::int64_t sum = 0;
    for (const NodeId member : map_.groups[group]) {
      if (member == from) continue;
      sum += pairs_[std::size_t{node} * map_.nodes + member];
      sum -= pairs_[std::size_t{from} * map_.nodes + member];
    }
    return sum;
  }

  void move(std::uint32_t group, NodeId from, NodeId to) {
    Stripe& members = map_.groups[group];
    const auto at = std::ranges::find(members, from) - members.begin();
    for (const NodeId member : members) {
      if (member == from) continue;
      count(from, member, -1);
      count(to, member, 1);
    }
    members[static_cast<std::size_t>(at)] = to;
    std::erase(groups_of_[from], group);
    groups_of_[to].push_back(group);
    moves_.push_back({group, static_cast<std::uint8_t>(at), from, to});
  }

  MapChange finish() {
    ++map_.version;
    std::ranges::sort(moves_, {}, [](const ShardMove& m) { return std::pair(m.group, m.shard); });
    return {std::move(map_), std::move(moves_)};
  }
  const StripeMap& map() const { return map_; }

 private:
  void count(NodeId a, NodeId b, int by) {
    pairs_[std::size_t{a} * map_.nodes + b] += static_cast<std::uint32_t>(by);
    pairs_[std::size_t{b} * map_.nodes + a] += static_cast<std::uint32_t>(by);
  }

  StripeMap map_;
  std::vector<std::uint32_t> pairs_;
  std::uint32_t rack_most_;
  std::vector<std::vector<std::uint32_t>> groups_of_;
  std::vector<ShardMove> moves_;
};

/// The group of `giver` that suits `taker` best, of at most kCandidates spread over all of them.
std::optional<std::uint32_t> best_group(const Resizing& state, NodeId giver, NodeId taker) {
  const std::vector<std::uint32_t>& groups = state.groups_of(giver);
  const std::size_t stride = std::max<std::size_t>(1, groups.size() / kCandidates);
  std::optional<std::uint32_t> best;
  std::int64_t least = 0;
  for (const std::size_t step : {stride, std::size_t{1}}) {
    for (std::size_t i = 0; i < groups.size(); i += step) {
      if (!state.fits(groups[i], giver, taker)) continue;
      const std::int64_t meetings = state.meetings(groups[i], giver, taker);
      if (!best || meetings < least) std::tie(best, least) = std::pair(groups[i], meetings);
    }
    if (best) break;  // otherwise every group is looked at
  }
  return best;
}

}  // namespace

base::Result<MapChange> expand(const StripeMap& map, std::uint32_t more,
                               std::span<const std::uint32_t> racks) {
  TRIMTAB_TRY(check(map));
  if (map.nodes + more > kNodesMost) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} + {} nodes are more than {}", map.nodes, more, kNodesMost),
                      "placement");
  }
  if (map.racks.empty() ? !racks.empty() : racks.size() != more) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} racks for {} new nodes: give one each when the map has racks, and "
                                  "none otherwise",
                                  racks.size(), more),
                      "placement");
  }
  StripeMap wider = map;
  wider.nodes += more;
  wider.racks.insert(wider.racks.end(), racks.begin(), racks.end());
  const auto holding = static_cast<std::size_t>(
      std::ranges::count_if(shards_of(map), [](std::uint32_t shards) { return shards > 0; }));
  const std::size_t share = map.groups.size() * kShards / (holding + more);
  Resizing state(std::move(wider));
  // New nodes take turns, so that they meet one another as well.
  for (std::size_t have = 0; have < share; ++have) {
    for (std::uint32_t n = map.nodes; n < map.nodes + more; ++n) {
      const auto taker = static_cast<NodeId>(n);
      std::vector<NodeId> givers(map.nodes);
      for (std::uint32_t g = 0; g < map.nodes; ++g) givers[g] = static_cast<NodeId>(g);
      std::ranges::stable_sort(givers, std::greater{}, [&](NodeId giver) { return state.shards(giver); });
      for (const NodeId giver : givers) {
        if (state.shards(giver) <= share) break;
        const auto group = best_group(state, giver, taker);
        if (!group) continue;
        state.move(*group, giver, taker);
        break;
      }
    }
  }
  return state.finish();
}

base::Result<MapChange> drain(const StripeMap& map, std::span<const NodeId> leaving) {
  TRIMTAB_TRY(check(map));
  std::vector<bool> leaves(map.nodes, false);
  for (const NodeId node : leaving) {
    if (node >= map.nodes) {
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("node {} is not in the map, which has 0 to {}", node, map.nodes - 1),
                        "placement");
    }
    leaves[node] = true;
  }
  const std::vector<std::uint32_t> shards = shards_of(map);
  Resizing state(map);
  for (std::uint32_t n = 0; n < map.nodes; ++n) {
    if (!leaves[n]) continue;
    const auto giver = static_cast<NodeId>(n);
    while (!state.groups_of(giver).empty()) {
      const std::uint32_t group = state.groups_of(giver).back();
      std::optional<NodeId> best;
      std::pair<std::size_t, std::int64_t> least;
      for (std::uint32_t t = 0; t < map.nodes; ++t) {
        const auto taker = static_cast<NodeId>(t);
        // A node that holds nothing left before.
        if (leaves[t] || shards[t] == 0 || !state.fits(group, giver, taker)) continue;
        const std::pair key(state.shards(taker), state.meetings(group, giver, taker));
        if (!best || key < least) std::tie(best, least) = std::pair(taker, key);
      }
      if (!best) {
        return base::fail(base::Code::kResourceExhausted,
                          fmt::format("group {} finds no node for a shard of node {}: too few nodes or racks "
                                      "would stay; add some first",
                                      group, n),
                          "placement");
      }
      state.move(group, giver, *best);
    }
  }
  return state.finish();
}

}  // namespace trimtab::placement
