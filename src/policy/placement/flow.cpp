#include "policy/placement/flow.h"

#include <algorithm>

namespace trimtab::placement {

std::size_t Flow::edge(std::uint32_t from, std::uint32_t to, std::int64_t capacity) {
  edges_.push_back({to, first_[from], capacity});
  first_[from] = static_cast<std::uint32_t>(edges_.size() - 1);
  edges_.push_back({from, first_[to], 0});
  first_[to] = static_cast<std::uint32_t>(edges_.size() - 1);
  return edges_.size() - 2;
}

bool Flow::layer(std::uint32_t source, std::uint32_t sink) {
  std::ranges::fill(level_, kNone);
  level_[source] = 0;
  std::vector<std::uint32_t> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (std::uint32_t e = first_[queue[i]]; e != kNone; e = edges_[e].next) {
      if (edges_[e].capacity == 0 || level_[edges_[e].to] != kNone) continue;
      level_[edges_[e].to] = level_[queue[i]] + 1;
      queue.push_back(edges_[e].to);
    }
  }
  return level_[sink] != kNone;
}

/// Recursion is three or four deep at first, and never deeper than the layers are many.
std::int64_t Flow::advance(std::uint32_t at, std::uint32_t sink, std::int64_t most) {
  if (at == sink) return most;
  for (std::uint32_t& e = next_[at]; e != kNone; e = edges_[e].next) {
    if (edges_[e].capacity == 0 || level_[edges_[e].to] != level_[at] + 1) continue;
    const std::int64_t sent = advance(edges_[e].to, sink, std::min(most, edges_[e].capacity));
    if (sent == 0) continue;
    edges_[e].capacity -= sent;
    edges_[e ^ 1].capacity += sent;
    return sent;
  }
  return 0;
}

std::int64_t Flow::push(std::uint32_t source, std::uint32_t sink) {
  std::int64_t whole = 0;
  while (layer(source, sink)) {
    next_ = first_;
    while (const std::int64_t sent = advance(source, sink, INT64_MAX)) whole += sent;
  }
  return whole;
}

}  // namespace trimtab::placement
