#pragma once

#include <cstdint>
#include <vector>

namespace trimtab::placement {

/// Maximum flow by Dinic's algorithm: O(edges x sqrt(nodes)) on the unit networks used here.
class Flow {
 public:
  explicit Flow(std::size_t nodes) : first_(nodes, kNone), level_(nodes), next_(nodes) {}

  /// The edge's number, for `flow_of`.
  std::size_t edge(std::uint32_t from, std::uint32_t to, std::int64_t capacity);
  std::int64_t push(std::uint32_t source, std::uint32_t sink);
  std::int64_t flow_of(std::size_t edge) const { return edges_[edge ^ 1].capacity; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Edge {
    std::uint32_t to = 0, next = 0;
    std::int64_t capacity = 0;
  };
  bool layer(std::uint32_t source, std::uint32_t sink);
  std::int64_t advance(std::uint32_t at, std::uint32_t sink, std::int64_t most);

  std::vector<Edge> edges_;  // each followed by its reverse
  std::vector<std::uint32_t> first_, level_, next_;
};

}  // namespace trimtab::placement
