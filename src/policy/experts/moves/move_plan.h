#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// Where a copy lies. Hosts 0 to after.ranks - 1 are the new ranks; old ranks that leave follow in their old
/// order. Slots from MovePlan::width on are staging.
struct Place {
  std::int32_t host = -1;
  std::int32_t slot = -1;
  bool operator==(const Place&) const = default;
};

enum class MoveKind : std::uint8_t {
  kLocal,   // between slots of one host
  kSend,    // from host to host
  kReload,  // from storage: no living rank holds the expert
};

struct Move {
  MoveKind kind = MoveKind::kLocal;
  std::int32_t expert = 0;
  Place from;  // {-1, -1} for a reload
  Place to;
};

/// How long moving may hold a step up, and how fast copies move.
struct MoveBudget {
  std::int64_t bytes_per_copy = 0;  // weights and scales of one expert in one layer
  std::int64_t link_bytes_per_s = 0;
  std::int64_t node_link_bytes_per_s = 0;  // between ranks of one node; 0: like link_bytes_per_s
  std::int64_t local_bytes_per_s = 0;      // inside a rank; 0: like node_link_bytes_per_s
  /// A batch takes no longer than this on any host; 0: batches as large as the order allows.
  std::int64_t stall_ns = 0;
};

struct MoveOptions {
  /// Extra slots per host that can hold a copy while others move. One is always enough; more means fewer
  /// batches.
  std::int32_t staging_slots = 1;
  /// All copies arrive in staging (or in slots that the old map lacks) before any slot of the old map is
  /// overwritten. Needs as many staging slots as a host receives.
  bool keep_old_map = false;
  /// Takes a source in the receiver's node whenever one holds the expert, before sends are balanced.
  bool same_node_first = true;
  MoveBudget budget;
};

struct MoveRequest {
  Shape before, after;  // of the same experts; ranks, slots and nodes may differ
  std::span<const std::int32_t> map_before, map_after;
  /// [after.ranks]: the old rank that is new rank r, -1 for a new one. Empty: rank r was rank r.
  std::span<const std::int32_t> rank_before = {};
  /// Old ranks whose memory is gone. Old ranks that are neither lost nor in rank_before are leaving: they
  /// send until the end.
  std::span<const std::int32_t> lost = {};
  MoveOptions options = {};
};

/// Moves of a batch run at the same time: none reads what another writes.
using MoveBatch = std::vector<Move>;

/// Copies by what a host does.
struct HostMoves {
  std::int64_t sends = 0, receives = 0, locals = 0, reloads = 0;
};

/// From map to map in one layer, in place.
///
/// Before a batch starts, the places it writes are retired from the engine's tables; when it has ended they
/// hold its experts. In between, whatever part of the batch was done, every expert (but those of `reloaded`
/// before their reload) has a valid place that the batch does not touch: `valid_places` states them.
/// Interrupted, run the same batch and slice again: it overwrites nothing that it reads.
struct MovePlan {
  std::int32_t experts = 0, hosts = 0;
  std::int32_t ranks = 0, nodes = 1;  // of the new shape: hosts behind the ranks are leaving
  std::int32_t width = 0;             // slots per host: the larger of before and after
  std::int32_t staging = 0;           // slots width .. width + staging - 1 of each host
  std::vector<MoveBatch> batches;
  /// A copy that takes longer than the budget moves in so many slices, a step between them; 1 otherwise.
  std::int32_t slices = 1;
  /// With keep_old_map: batches before this one leave the old map whole. Else 0.
  std::int32_t commit_batch = 0;
  std::vector<HostMoves> by_host;
  std::int64_t bytes_per_copy = 0;
  /// No choice of sources makes the host that sends most send less than this; the plan reaches it.
  std::int64_t sends_max_bound = 0;
  /// Staging slots of one host that are in use at once, at most.
  std::int32_t staging_used = 0;
  /// The longest batch, on its busiest host, one slice of it.
  std::int64_t stall_ns = 0;
  /// At some point an expert's only valid copies are in staging: the engine's tables must reach it there.
  bool staging_serves = false;
  std::vector<std::int32_t> reloaded;       // experts without a living copy, ascending
  std::vector<std::int32_t> before, after;  // [hosts, width + staging]: experts, -1 where there is none

  /// A leaving host counts as a node of its own.
  bool same_node(std::int32_t host, std::int32_t other) const {
    const std::int32_t width_of_node = ranks / nodes;
    return host == other || (host < ranks && other < ranks && host / width_of_node == other / width_of_node);
  }
  std::int32_t places_per_host() const { return width + staging; }
  std::int64_t sends_max() const;
  std::int64_t receives_max() const;
  std::int64_t received() const;  // copies over links, all hosts
};

/// Source and order of every copy. Sends are spread over the hosts that hold an expert so that the busiest
/// sends as few as possible (optimal semi-matching: Harvey, Ladner, Lovasz, Tamir 2003). A copy goes straight
/// to its slot when what lies there is no longer needed from that host, and otherwise to staging. Why one
/// staging slot is enough: when no move is possible, every pending slot holds something that a pending move
/// reads, so as many things are needed as there are moves, and nothing is in staging.
///
/// Errors: a bad shape or map, another number of experts, an old rank named twice or out of range, budgets
/// that are negative or lack a speed, staging too small (the message says how much is needed).
base::Result<MovePlan> plan_moves(const MoveRequest& request);

/// [hosts, places_per_host]: the expert that may be read at each place, -1 where none, before batch `batch`
/// starts, or while it runs (`running`). batch == batches.size(): at the end, when only the new map counts.
std::vector<std::int32_t> valid_places(const MovePlan& plan, std::int32_t batch, bool running);

/// "12 copies over links (1 to 3 sent, 1 to 2 received by a rank), 4 inside ranks, in 3 batches of at
/// most 1.9 ms".
std::string describe(const MovePlan& plan);

}  // namespace trimtab::experts
