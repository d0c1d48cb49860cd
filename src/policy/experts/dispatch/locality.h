#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/dispatch/share_flow.h"
#include "policy/experts/dispatch/share_table.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// What counts as near, and whose tokens share a row of the table.
enum class Near : std::uint8_t {
  kNode,  // one row a node: a copy on the token's own node first
  kRank,  // one row a rank: its own copy first, then one on its node
};

struct LocalityOptions {
  Near near = Near::kNode;
  /// The busiest rank may carry (1 + slack) x the least possible peak, to keep more tokens near.
  double slack = 0;
  std::int32_t parts = kShareParts;
};

struct LocalityResult {
  double optimum_tokens = 0;  // least possible peak
  double peak_tokens = 0;     // peak under these shares, at most (1 + slack) x the optimum
  /// Tokens that stay on their rank and on their node (rank included), and what the same shares would keep
  /// there without regard to where a token comes from.
  double on_rank_tokens = 0, on_node_tokens = 0;
  double on_rank_blind = 0, on_node_blind = 0;
  double total_tokens = 0;
};

/// Shares that depend on where a token comes from: near copies first, as far as the peak allows.
///
/// Algorithm: start from the shares that keep every token near which can be (a source without a near copy
/// spreads evenly), then let overloaded ranks push along shortest paths, only until the busiest is within
/// (1 + slack) x the optimum (ShareFlow::level). The tokens of each copy are then handed to sources, own
/// rank, own node, then the rest in order of copies, so that each copy receives exactly its share: sources
/// change who sends, never how much a rank gets. Cost: sources x copies per replicated expert on top of the
/// solver. Weakness: sources are taken to route alike unless their counts are given; the push keeps paths
/// short, which is not the same as the most tokens near.
class LocalShares {
 public:
  /// Errors: illegal shape, map or parts; a slack that is negative or not finite.
  static base::Result<LocalShares> make(const Shape& shape, std::span<const std::int32_t> map,
                                        const LocalityOptions& options);

  /// `tokens`: [experts], every source sending the same part of each.
  base::Result<LocalityResult> solve(std::span<const double> tokens);
  /// `tokens`: [sources, experts].
  base::Result<LocalityResult> solve_sources(std::span<const double> tokens);

  /// Nodes or ranks, as `near` says.
  std::int32_t sources() const { return sources_; }
  /// What the ranks of this source split their tokens by.
  const ShareTable& table(std::int32_t source) const { return tables_[static_cast<std::size_t>(source)]; }

 private:
  std::int32_t node_of_source(std::int32_t source) const;
  bool is_near(std::int32_t source, std::int32_t slot, Near near) const;
  void count_blind(std::int32_t expert, LocalityResult& result) const;
  void start_near();
  void hand_out(std::int32_t expert, LocalityResult& result);

  LocalityOptions options_;
  Shape shape_;
  std::int32_t sources_ = 1;
  ShareFlow flow_;
  std::vector<ShareTable> tables_;
  std::vector<double> totals_, alike_, weights_;
  std::vector<std::int64_t> wanted_;       // of all slots
  std::vector<std::int64_t> demand_;       // [experts, sources]
  std::vector<std::int64_t> room_, sent_;  // of one expert: [hosts], [sources, hosts]
};

/// Nodes that tokens visit. `slots`: [tokens, top_k], the slot of each choice; `source_rank`: [tokens].
struct NodeCount {
  double nodes_per_token = 0;         // distinct nodes among a token's choices
  double remote_nodes_per_token = 0;  // without the token's own: each costs one send between nodes
};
NodeCount count_nodes(const Shape& shape, std::span<const std::int32_t> slots, std::int32_t top_k,
                      std::span<const std::int32_t> source_rank);

}  // namespace trimtab::experts
