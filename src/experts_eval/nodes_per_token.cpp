#include "experts_eval/nodes_per_token.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace trimtab::experts_eval {

double nodes_per_token(const experts::Shape& shape, std::span<const std::int32_t> map,
                       std::span<const std::int32_t> routing, std::int32_t top_k) {
  TRIMTAB_CHECK(top_k > 0 && routing.size() % static_cast<std::size_t>(top_k) == 0);
  std::vector<std::vector<std::int32_t>> nodes_of(static_cast<std::size_t>(shape.experts));  // ascending
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    auto& nodes = nodes_of[static_cast<std::size_t>(map[static_cast<std::size_t>(slot)])];
    const std::int32_t node = shape.node_of_rank(shape.rank_of_slot(slot));
    if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
  }
  std::vector<std::int64_t> visited_by(static_cast<std::size_t>(shape.nodes), -1);
  std::int64_t visits = 0;
  const auto width = static_cast<std::size_t>(top_k);
  const auto tokens = static_cast<std::int64_t>(routing.size() / width);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (const std::int32_t expert : routing.subspan(static_cast<std::size_t>(token) * width, width)) {
      const auto& nodes = nodes_of[static_cast<std::size_t>(expert)];
      const bool there = std::ranges::any_of(
          nodes, [&](std::int32_t node) { return visited_by[static_cast<std::size_t>(node)] == token; });
      if (there) continue;
      visited_by[static_cast<std::size_t>(nodes.front())] = token;
      ++visits;
    }
  }
  return tokens > 0 ? static_cast<double>(visits) / static_cast<double>(tokens) : 0.0;
}

}  // namespace trimtab::experts_eval
