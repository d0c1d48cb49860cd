#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts {

/// The node of each group, [groups]: as many groups on every node, the sum over the window's steps of the
/// busiest node as small as can be found. Every partition is tried while there are few (exact), else
/// exchanges from a greedy start. Requires that nodes divide groups.
std::vector<std::int32_t> pack_groups(const Shape& shape, const LoadWindow& window);

/// The node of each group in a map in which no group is on two nodes and every node has as many; empty when
/// the map is not of that kind.
std::vector<std::int32_t> nodes_of_groups(const Shape& shape, std::span<const std::int32_t> map);

/// plan_layer's hierarchical scope: groups packed on nodes, then each node planned for itself over its own
/// ranks and slots (as many on every node), so that a group never leaves its node. Fresh plans are relabelled
/// node by node. Incremental plans keep the groups where the current map has them; a current map that mixes
/// groups on nodes is planned afresh. Errors: nodes that do not divide groups (the message offers the global
/// scope), and plan_layer's.
base::Result<Plan> plan_hierarchical(const Shape& shape, const LoadWindow& window,
                                     std::span<const std::int32_t> current, const PlanOptions& options);

}  // namespace trimtab::experts
