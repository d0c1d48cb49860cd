#include "policy/placement/near_design.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace trimtab::placement {
namespace {

constexpr std::int64_t kMoves = 400'000;

/// Groups per pair of nodes: finer levels with more, at the price of a longer table.
std::uint32_t base_blocks(std::uint32_t nodes) {
  const std::uint32_t per_pair = nodes <= 200 ? 110 : 110 * 200 / nodes;
  return std::max(1U, (per_pair * (nodes - 1) + 66) / 132);
}

/// The base blocks under change, with how often each difference occurs.
class Differences {
 public:
  Differences(std::uint32_t nodes, std::uint32_t racks, std::uint32_t per_rack)
      : nodes_(nodes), racks_(racks), per_rack_(per_rack), counts_(nodes, 0), prng_(nodes, racks) {
    blocks_.resize(base_blocks(nodes));
    for (Stripe& block : blocks_) draw(block);
    for (const Stripe& block : blocks_)
      for (std::size_t i = 0; i < kShards; ++i)
        for (std::size_t j = 0; j < i; ++j) count(block[i], block[j], 1);
    wanted_ = static_cast<std::int64_t>(blocks_.size()) * 132;
    // Nodes of one rack need not meet when a rack holds one shard of a group.
    differing_ = per_rack_ == 1 ? nodes_ - nodes_ / racks_ : nodes_ - 1;
  }

  void level() {
    // The threshold falls linearly to zero; a move that costs less than it is taken.
    for (std::int64_t move = 0; move < kMoves; ++move) {
      const std::int64_t threshold = 6 * (kMoves - move) / kMoves;
      Stripe& block = blocks_[prng_.below(blocks_.size())];
      const std::size_t at = prng_.below(kShards);
      const auto fresh = static_cast<NodeId>(prng_.below(nodes_));
      if (!fits(block, at, fresh)) continue;
      const std::int64_t change = exchange(block, at, fresh);
      if (change > threshold * differing_) exchange(block, at, undo_);
    }
  }

  std::vector<Stripe> developed() const {
    std::vector<Stripe> groups;
    groups.reserve(blocks_.size() * nodes_);
    for (const Stripe& block : blocks_) {
      for (std::uint32_t shift = 0; shift < nodes_; ++shift) {
        Stripe moved = block;
        for (NodeId& node : moved) node = static_cast<NodeId>((node + shift) % nodes_);
        groups.push_back(moved);
      }
    }
    return groups;
  }
  std::size_t size() const { return blocks_.size(); }

 private:
  void draw(Stripe& block) {
    for (std::size_t at = 0; at < kShards; ++at) {
      NodeId node = 0;
      do {
        node = static_cast<NodeId>(prng_.below(nodes_));
      } while (!fits(block, at, node, at));
      block[at] = node;
    }
  }

  /// Whether `node` may stand at `at` beside the first `known` others.
  bool fits(const Stripe& block, std::size_t at, NodeId node, std::size_t known = kShards) const {
    std::uint32_t same = 0;
    for (std::size_t i = 0; i < known; ++i) {
      if (i == at) continue;
      if (block[i] == node) return false;
      if (racks_ > 1 && block[i] % racks_ == node % racks_) ++same;
    }
    return same < per_rack_;
  }

  void count(NodeId a, NodeId b, int by) {
    const std::uint32_t difference = a > b ? a - b : b - a;
    counts_[difference] += by;
    counts_[nodes_ - difference] += by;
  }

  /// How much counting this pair once more (or less) raises the sum of squares around the mean, times
  /// `differing_` to stay whole.
  std::int64_t price(NodeId a, NodeId b, int by) const {
    const std::uint32_t difference = a > b ? a - b : b - a;
    const std::int64_t weight = difference * 2 == nodes_ ? 2 : 1;  // this difference is its own negative
    const std::int64_t now = counts_[difference];
    return 2 * weight * ((2 * by * now + weight) * differing_ - 2 * by * wanted_);
  }

  /// Puts `node` at `at`; what that costs. `undo_` is what stood there.
  std::int64_t exchange(Stripe& block, std::size_t at, NodeId node) {
    std::int64_t change = 0;
    undo_ = block[at];
    for (std::size_t i = 0; i < kShards; ++i) {
      if (i == at) continue;
      change += price(block[i], block[at], -1);
      count(block[i], block[at], -1);
    }
    block[at] = node;
    for (std::size_t i = 0; i < kShards; ++i) {
      if (i == at) continue;
      change += price(block[i], node, 1);
      count(block[i], node, 1);
    }
    return change;
  }

  std::uint32_t nodes_, racks_, per_rack_;
  std::vector<std::int32_t> counts_;  // of each difference and of its negative
  base::Prng prng_;
  std::vector<Stripe> blocks_;
  std::int64_t wanted_ = 0, differing_ = 1;  // the mean count is wanted / differing
  NodeId undo_ = 0;
};

}  // namespace

Design cyclic_near_design(std::uint32_t nodes, std::uint32_t rack_count, std::uint32_t per_rack) {
  Differences differences(nodes, rack_count, per_rack);
  differences.level();
  return {differences.developed(), fmt::format("cyclic near design, {} base blocks", differences.size())};
}

}  // namespace trimtab::placement
