// Near designs for racks of unequal size.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "policy/placement/near_design.h"

namespace trimtab::placement {
namespace {

class Exchange {
 public:
  Exchange(std::span<const std::uint32_t> racks, std::uint32_t per_rack)
      : racks_(racks),
        per_rack_(per_rack),
        nodes_(static_cast<std::uint32_t>(racks.size())),
        prng_(nodes_, 7) {}

  /// Slots are dealt in an order in which a rack's nodes come one after another: group g takes the slots g,
  /// g + b, g + 2 b ..., and a rack with at most per_rack / 12 of all slots then meets a group at most
  /// per_rack times.
  void deal(std::uint32_t per_node) {
    std::vector<NodeId> order(nodes_);
    for (std::uint32_t n = 0; n < nodes_; ++n) order[n] = static_cast<NodeId>(n);
    std::ranges::stable_sort(order, {}, [this](NodeId node) { return racks_[node]; });
    groups_.resize(std::size_t{per_node} * nodes_ / kShards);
    std::size_t slot = 0;
    for (const NodeId node : order)
      for (std::uint32_t i = 0; i < per_node; ++i, ++slot)
        groups_[slot % groups_.size()][slot / groups_.size()] = node;
    pairs_.assign(std::size_t{nodes_} * nodes_, 0);
    for (const Stripe& group : groups_)
      for (std::size_t i = 0; i < kShards; ++i)
        for (std::size_t j = 0; j < i; ++j) count(group[i], group[j], 1);
  }

  /// Two groups exchange one member each where both may; taken when the pairs become more level.
  void level(std::int64_t moves) {
    for (std::int64_t move = 0; move < moves; ++move) {
      Stripe& a = groups_[prng_.below(groups_.size())];
      Stripe& b = groups_[prng_.below(groups_.size())];
      const std::size_t at_a = prng_.below(kShards), at_b = prng_.below(kShards);
      if (&a == &b || !fits(a, at_a, b[at_b]) || !fits(b, at_b, a[at_a])) continue;
      const std::int64_t threshold = 12 * (moves - move) / moves;
      if (exchange(a, at_a, b, at_b) > threshold) exchange(a, at_a, b, at_b);
    }
  }
  std::vector<Stripe> take() { return std::move(groups_); }

 private:
  bool fits(const Stripe& group, std::size_t at, NodeId node) const {
    std::uint32_t same = 0;
    for (std::size_t i = 0; i < kShards; ++i) {
      if (i == at) continue;
      if (group[i] == node) return false;
      if (racks_[group[i]] == racks_[node]) ++same;
    }
    return same < per_rack_;
  }
  void count(NodeId a, NodeId b, std::int32_t by) {
    pairs_[std::size_t{a} * nodes_ + b] += by;
    pairs_[std::size_t{b} * nodes_ + a] += by;
  }
  /// The sum of squares of the pairs' counts, by how much it changes. Their sum stays, so this levels them.
  std::int64_t replace(Stripe& group, std::size_t at, NodeId node) {
    std::int64_t change = 0;
    for (std::size_t i = 0; i < kShards; ++i) {
      if (i == at) continue;
      change -= 2 * pairs_[std::size_t{group[i]} * nodes_ + group[at]] - 1;
      count(group[i], group[at], -1);
      change += 2 * pairs_[std::size_t{group[i]} * nodes_ + node] + 1;
      count(group[i], node, 1);
    }
    group[at] = node;
    return change;
  }
  std::int64_t exchange(Stripe& a, std::size_t at_a, Stripe& b, std::size_t at_b) {
    const NodeId from_a = a[at_a], from_b = b[at_b];
    const std::int64_t first = replace(a, at_a, from_b);
    return first + replace(b, at_b, from_a);
  }

  std::span<const std::uint32_t> racks_;
  std::uint32_t per_rack_, nodes_;
  base::Prng prng_;
  std::vector<Stripe> groups_;
  std::vector<std::int32_t> pairs_;
};

}  // namespace

Design racked_near_design(std::span<const std::uint32_t> racks, std::uint32_t per_rack) {
  const auto nodes = static_cast<std::uint32_t>(racks.size());
  // Shards per node, a multiple of twelve so that the groups come out whole; about 44 groups per pair.
  const std::uint32_t per_node = std::max(1U, 44 * (nodes - 1) / 132) * kShards;
  Exchange exchange(racks, per_rack);
  exchange.deal(std::min(per_node, 60 * static_cast<std::uint32_t>(kShards)));
  exchange.level(1'500'000);
  return {exchange.take(), "near design by exchanges, racks of unequal size"};
}

}  // namespace trimtab::placement
