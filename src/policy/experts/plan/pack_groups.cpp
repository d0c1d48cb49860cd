#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "policy/experts/plan/hierarchical.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Partitions of groups into unnamed nodes that are all tried; beyond, exchanges from a greedy start.
constexpr double kPartitionsMax = 20000;

double partitions(std::int32_t groups, std::int32_t nodes) {
  double count = 1;
  const std::int32_t room = groups / nodes;
  // The lowest group that is left chooses its companions.
  for (std::int32_t left = groups; left > 0 && count <= kPartitionsMax; left -= room) {
    for (std::int32_t i = 1; i < room; ++i) count = count * (left - i) / i;
  }
  return count;
}

class Packer {
 public:
  Packer(const Shape& shape, const LoadWindow& window)
      : nodes_(shape.nodes),
        room_(shape.groups / shape.nodes),
        steps_(static_cast<std::size_t>(window.steps())),
        loads_(at(shape.groups), std::vector<double>(steps_)),
        sums_(at(shape.nodes), std::vector<double>(steps_)),
        node_of_(at(shape.groups), -1),
        filled_(at(shape.nodes)) {
    for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
      auto& load = loads_[at(shape.group_of_expert(expert))];
      for (std::size_t step = 0; step < steps_; ++step)
        load[step] += static_cast<double>(window.of(expert)[step]);
    }
  }

  std::vector<std::int32_t> run() {
    if (room_ == 1) {
      std::iota(node_of_.begin(), node_of_.end(), 0);
      return node_of_;
    }
    if (partitions(static_cast<std::int32_t>(node_of_.size()), nodes_) <= kPartitionsMax) {
      enumerate(0);
      return best_;
    }
    greedy();
    while (exchange()) continue;
    return node_of_;
  }

 private:
  void put(std::int32_t group, std::int32_t node, double sign) {
    for (std::size_t step = 0; step < steps_; ++step) sums_[at(node)][step] += sign * loads_[at(group)][step];
    node_of_[at(group)] = sign > 0 ? node : -1;
    filled_[at(node)] += sign > 0 ? 1 : -1;
  }

  double peaks() const {
    double sum = 0;
    for (std::size_t step = 0; step < steps_; ++step) {
      double peak = 0;
      for (const auto& node : sums_) peak = std::max(peak, node[step]);
      sum += peak;
    }
    return sum;
  }

  /// Groups in order, each to any node that is open already or to the next one: every partition once.
  void enumerate(std::size_t group) {
    if (group == node_of_.size()) {
      const double sum = peaks();
      // Counts are whole, so sums of them are exact up to 2^53; the margin is for loads that are not counts.
      if (best_.empty() || sum < best_sum_ * (1 - 1e-12)) best_ = node_of_, best_sum_ = sum;
      return;
    }
    for (std::int32_t node = 0; node < nodes_; ++node) {
      if (filled_[at(node)] == room_) continue;
      const bool first_of_node = filled_[at(node)] == 0;
      put(static_cast<std::int32_t>(group), node, 1);
      enumerate(group + 1);
      put(static_cast<std::int32_t>(group), node, -1);
      if (first_of_node) return;  // an empty node is like the next empty one
    }
  }

  void greedy() {
    std::vector<double> totals;
    for (const auto& load : loads_) totals.push_back(std::accumulate(load.begin(), load.end(), 0.0));
    std::vector<std::int32_t> order(totals.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](std::int32_t group) { return totals[at(group)]; });
    for (const std::int32_t group : order) {
      std::int32_t best = -1;
      double best_sum = 0;
      for (std::int32_t node = 0; node < nodes_; ++node) {
        if (filled_[at(node)] == room_) continue;
        put(group, node, 1);
        const double sum = peaks();
        put(group, node, -1);
        if (best < 0 || sum < best_sum) best = node, best_sum = sum;
      }
      put(group, best, 1);
    }
  }

  void exchange_nodes(std::int32_t a, std::int32_t b) {
    const std::int32_t node_a = node_of_[at(a)], node_b = node_of_[at(b)];
    put(a, node_a, -1), put(b, node_b, -1);
    put(a, node_b, 1), put(b, node_a, 1);
  }

  bool exchange() {
    const double before = peaks();
    double best_sum = before * (1 - 1e-9);
    std::pair<std::int32_t, std::int32_t> best{-1, -1};
    for (std::int32_t a = 0; a < std::ssize(node_of_); ++a) {
      for (std::int32_t b = a + 1; b < std::ssize(node_of_); ++b) {
        if (node_of_[at(a)] == node_of_[at(b)]) continue;
        exchange_nodes(a, b);
        const double sum = peaks();
        exchange_nodes(a, b);
        if (sum < best_sum) best_sum = sum, best = {a, b};
      }
    }
    if (best.first < 0) return false;
    exchange_nodes(best.first, best.second);
    return true;
  }

  std::int32_t nodes_, room_;
  std::size_t steps_;
  std::vector<std::vector<double>> loads_, sums_;  // [groups, steps], [nodes, steps]
  std::vector<std::int32_t> node_of_, filled_, best_;
  double best_sum_ = 0;
};

}  // namespace

std::vector<std::int32_t> pack_groups(const Shape& shape, const LoadWindow& window) {
  TRIMTAB_CHECK(shape.groups % shape.nodes == 0 && window.experts() == shape.experts);
  return Packer(shape, window).run();
}

std::vector<std::int32_t> nodes_of_groups(const Shape& shape, std::span<const std::int32_t> map) {
  std::vector<std::int32_t> node_of(at(shape.groups), -1), filled(at(shape.nodes));
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    std::int32_t& node = node_of[at(shape.group_of_expert(map[at(slot)]))];
    const std::int32_t here = shape.node_of_rank(shape.rank_of_slot(slot));
    if (node >= 0 && node != here) return {};
    if (node < 0) ++filled[at(here)];
    node = here;
  }
  const bool even =
      std::ranges::all_of(filled, [&](std::int32_t n) { return n == shape.groups / shape.nodes; });
  return even ? node_of : std::vector<std::int32_t>{};
}

}  // namespace trimtab::experts
