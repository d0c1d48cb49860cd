#include "policy/experts/plan/hierarchical.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "policy/experts/plan/relabel.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

base::Status check_nodes(const Shape& shape) {
  TRIMTAB_TRY(check(shape));
  if (shape.groups % shape.nodes != 0) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("{} nodes do not divide {} groups of experts, so no hierarchical placement exists: use a "
                    "number of nodes that does, or the global scope",
                    shape.nodes, shape.groups),
        "policy/experts");
  }
  if (shape.slots_per_rank() > shape.experts / shape.nodes) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format(
            "{} slots a rank are more than the {} experts of a node: some would hold an expert twice; "
            "use at most {} slots, or the global scope",
            shape.slots_per_rank(), shape.experts / shape.nodes, shape.experts / shape.nodes * shape.ranks),
        "policy/experts");
  }
  return {};
}

/// One node as a problem of its own: its experts renumbered from 0, in order.
struct Node {
  Shape shape;
  std::vector<std::int32_t> members;  // its number -> expert
  SlotMap current;                    // of its slots, in its numbers; empty without one

  base::Result<LoadWindow> window(const LoadWindow& whole) const {
    const auto steps = static_cast<std::size_t>(whole.steps());
    std::vector<float> loads(steps * members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::span<const float> of = whole.of(members[i]);
      for (std::size_t step = 0; step < steps; ++step) loads[step * members.size() + i] = of[step];
    }
    return LoadWindow::make(loads.data(), whole.steps(), static_cast<std::int32_t>(members.size()),
                            static_cast<std::ptrdiff_t>(members.size()));
  }
};

std::vector<Node> split(const Shape& shape, std::span<const std::int32_t> node_of,
                        std::span<const std::int32_t> current) {
  const std::int32_t slots = shape.slots / shape.nodes;
  std::vector<Node> nodes(at(shape.nodes));
  std::vector<std::int32_t> number(at(shape.experts));
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    Node& node = nodes[at(node_of[at(shape.group_of_expert(expert))])];
    number[at(expert)] = static_cast<std::int32_t>(node.members.size());
    node.members.push_back(expert);
  }
  for (std::int32_t n = 0; n < shape.nodes; ++n) {
    Node& node = nodes[at(n)];
    node.shape = {static_cast<std::int32_t>(node.members.size()), slots, shape.ranks / shape.nodes, 1, 1};
    for (std::int32_t i = 0; !current.empty() && i < slots; ++i) {
      node.current.push_back(number[at(current[at(n * slots + i)])]);
    }
  }
  return nodes;
}

/// Plans of the nodes put together, and what each was worth.
struct Parts {
  std::vector<SlotMap> maps;  // in experts
  std::vector<std::int64_t> received;
  PlanReason reason;

  SlotMap whole() const {
    SlotMap map;
    for (const SlotMap& part : maps) map.insert(map.end(), part.begin(), part.end());
    return map;
  }
};

/// Plans node `n` into its part. `cap`: most received copies.
base::Status plan_part(const Node& node, std::size_t n, const LoadWindow& window, const PlanOptions& options,
                       std::int32_t cap, Parts& parts) {
  PlanOptions with = options;
  with.scope = Scope::kGlobal;
  with.moves_max = cap;
  const auto part_window = node.window(window);
  if (!part_window) return tl::unexpected(part_window.error());
  auto plan = plan_layer(node.shape, *part_window, node.current, with);
  if (!plan) return tl::unexpected(plan.error());
  parts.received[n] = plan->reason.received;
  parts.reason.swaps += plan->reason.swaps;
  parts.reason.replacements += plan->reason.replacements;
  parts.reason.walk_steps += plan->reason.walk_steps;
  for (std::int32_t& expert : plan->map) expert = node.members[at(expert)];
  parts.maps[n] = std::move(plan->map);
  return {};
}

/// `caps`: most received copies of each node; empty: the options' own.
base::Result<Parts> plan_parts(const std::vector<Node>& nodes, const LoadWindow& window,
                               const PlanOptions& options, std::span<const std::int32_t> caps) {
  Parts parts{std::vector<SlotMap>(nodes.size()), std::vector<std::int64_t>(nodes.size()), {}};
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    TRIMTAB_TRY(plan_part(nodes[n], n, window, options, caps.empty() ? options.moves_max : caps[n], parts));
  }
  return parts;
}

/// The busiest rank of one node in every step, [steps].
std::vector<double> peaks_of(const Shape& node, const Shape& whole, const SlotMap& map,
                             const LoadWindow& window) {
  std::vector<std::int32_t> copies = copies_of(whole, map);
  const auto steps = static_cast<std::size_t>(window.steps());
  std::vector<double> peaks(steps), load(steps);
  for (std::int32_t rank = 0, slot = 0; rank < node.ranks; ++rank) {
    std::ranges::fill(load, 0.0);
    for (std::int32_t i = 0; i < node.slots_per_rank(); ++i, ++slot) {
      const std::int32_t expert = map[at(slot)];
      const std::span<const float> of = window.of(expert);
      for (std::size_t step = 0; step < steps; ++step) {
        load[step] += static_cast<double>(of[step]) / copies[at(expert)];
      }
    }
    for (std::size_t step = 0; step < steps; ++step) peaks[step] = std::max(peaks[step], load[step]);
  }
  return peaks;
}

/// All nodes quickly first; then, with all the effort, those that are the busiest in some step, until none is
/// left that was planned quickly. The others set no pace, and mostly it is one group that is hot.
base::Result<Parts> plan_fresh(const Shape& shape, const std::vector<Node>& nodes, const LoadWindow& window,
                               const PlanOptions& options) {
  PlanOptions quick = options;
  quick.effort = Effort::kFast;
  auto parts = plan_parts(nodes, window, quick, {});
  if (!parts || options.effort == Effort::kFast) return parts;
  std::vector<std::vector<double>> peaks(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n)
    peaks[n] = peaks_of(nodes[n].shape, shape, parts->maps[n], window);
  std::vector<bool> thorough(nodes.size());
  for (std::size_t step = 0; step < static_cast<std::size_t>(window.steps());) {
    std::size_t busiest = 0;
    for (std::size_t n = 1; n < nodes.size(); ++n) {
      if (peaks[n][step] > peaks[busiest][step]) busiest = n;
    }
    if (thorough[busiest]) {
      ++step;
      continue;
    }
    thorough[busiest] = true;
    TRIMTAB_TRY(plan_part(nodes[busiest], busiest, window, options, options.moves_max, *parts));
    peaks[busiest] = peaks_of(nodes[busiest].shape, shape, parts->maps[busiest], window);
    step = 0;
  }
  return parts;
}

/// The cap of all nodes shared out in proportion to what each would take; what rounding leaves goes to the
/// first ones.
std::vector<std::int32_t> share_cap(const std::vector<std::int64_t>& wanted, std::int32_t cap) {
  const std::int64_t all = std::accumulate(wanted.begin(), wanted.end(), std::int64_t{0});
  std::vector<std::int32_t> caps;
  for (const std::int64_t one : wanted) caps.push_back(static_cast<std::int32_t>(one * cap / all));
  std::int32_t left = cap - std::accumulate(caps.begin(), caps.end(), 0);
  for (std::size_t i = 0; left > 0; i = (i + 1) % caps.size()) {
    if (caps[i] < wanted[i]) ++caps[i], --left;
  }
  return caps;
}

/// Only the busiest node of a step counts: a node whose new plan the whole does not need keeps its old one.
void keep_what_does_not_pay(const Shape& shape, const LoadWindow& window,
                            std::span<const std::int32_t> current, double move_price, Parts& parts) {
  const std::size_t slots = at(shape.slots / shape.nodes);
  double balance = balance_of(shape, parts.whole(), window).of_sums;
  for (std::size_t n = 0; n < parts.maps.size(); ++n) {
    if (parts.received[n] == 0) continue;
    const std::span<const std::int32_t> old = current.subspan(n * slots, slots);
    SlotMap kept(old.begin(), old.end());
    std::swap(parts.maps[n], kept);
    const SlotMap whole = parts.whole();
    const double without = balance_of(shape, whole, window).of_sums;
    const bool pays = without - balance > move_price * static_cast<double>(parts.received[n]) * balance;
    if (pays || duplicate_copies(shape, whole) > 0) {
      std::swap(parts.maps[n], kept);
    } else {
      parts.received[n] = 0;
      balance = without;
    }
  }
}

base::Result<Parts> plan_incremental(const Shape& shape, const LoadWindow& window,
                                     std::span<const std::int32_t> node_of,
                                     std::span<const std::int32_t> current, const PlanOptions& options) {
  const std::vector<Node> nodes = split(shape, node_of, current);
  auto parts = plan_parts(nodes, window, options, {});
  if (!parts) return parts;
  const auto received = [&] {
    return std::accumulate(parts->received.begin(), parts->received.end(), std::int64_t{0});
  };
  keep_what_does_not_pay(shape, window, current, std::max(options.move_price, 0.0), *parts);
  if (options.moves_max >= 0 && received() > options.moves_max) {
    parts = plan_parts(nodes, window, options, share_cap(parts->received, options.moves_max));
    if (parts) keep_what_does_not_pay(shape, window, current, std::max(options.move_price, 0.0), *parts);
  }
  return parts;
}

}  // namespace

base::Result<Plan> plan_hierarchical(const Shape& shape, const LoadWindow& window,
                                     std::span<const std::int32_t> current, const PlanOptions& options) {
  TRIMTAB_TRY(check_nodes(shape));
  if (window.experts() != shape.experts) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("the window has {} experts, the shape {}", window.experts(), shape.experts),
                      "policy/experts");
  }
  const bool incremental = options.start == Start::kIncremental;
  if (incremental) TRIMTAB_TRY(check(shape, current, false));
  const std::vector<std::int32_t> kept =
      incremental ? nodes_of_groups(shape, current) : std::vector<std::int32_t>{};
  PlanOptions fresh = options;
  fresh.start = Start::kFresh;
  auto parts = kept.empty() ? plan_fresh(shape, split(shape, pack_groups(shape, window), {}), window, fresh)
                            : plan_incremental(shape, window, kept, current, options);
  if (!parts) return tl::unexpected(parts.error());
  Plan plan{parts->whole(), parts->reason};
  const bool comparable = !current.empty() && current.size() % at(shape.ranks) == 0;
  if (kept.empty() && comparable) plan.map = relabel(shape, current, plan.map, true);
  plan.reason.balance = balance_of(shape, plan.map, window).of_sums;
  if (comparable) plan.reason.received = received_copies(shape, current, plan.map);
  if (current.size() == plan.map.size())
    plan.reason.balance_before = balance_of(shape, current, window).of_sums;
  return plan;
}

}  // namespace trimtab::experts
