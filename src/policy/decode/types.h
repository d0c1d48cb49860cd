#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "model/cluster_config.h"
#include "model/ids.h"
#include "policy/decode/victim.h"

/// The values of decode placement: what the placer is told, what it answers, and why.
namespace trimtab::policy {

using base::Nanos;
using base::TokenCount;
using model::RankId;
using model::RequestId;

struct DecodeConfig {
  std::string policy = "waterline_hazard";  // a name of decode_policy_names()
  /// Waterline: how many mean requests above the mean KV a rank may end up, in thousandths (2.4 by default).
  std::int64_t slack_permille = 2'400;
  /// DualPath: the line is this many hundredths of the mean KV.
  std::int64_t relax_percent = 105;
  /// Kept free beyond the tokens of each request, of those running too: growth, and the unused part of the
  /// last block (so at least kBlockTokens - 1, or admission could promise blocks that do not exist).
  std::int64_t headroom_tokens = 128;
  /// Waterline: hold a request rather than lift a rank above this many thousandths of the long-run mean KV of
  /// a full rank. 0 switches the ceiling off: it pays only where preemption is cheap.
  std::int64_t ceiling_permille = 0;
  /// A ceiling holds nobody longer than this (30 steps of about 33 ms).
  Nanos hold_max{1'000'000'000};
  /// What a report corrected is forgotten this long after its instant (at most twice as long): a rank that
  /// fell silent must not carry the load of others for ever.
  Nanos report_lifetime{10'000'000'000};
  VictimRule victim = VictimRule::kBestFit;
  /// Policy waterline_hold: the ceilings apply once the requests that run and wait come to so many per rank;
  /// below that the group is not full and nobody is held.
  std::int64_t hold_from_running = 8;
  /// Policies that look at what remains: loads are those expected this many tokens of each request ahead, or
  /// fewer where answers are short (survival.h).
  std::int64_t horizon_tokens = 4;
  /// Look-ahead: `decide_next` looks at so many of the waiting requests (1: strict FIFO) and passes nobody by
  /// more than four times as often.
  std::int64_t window = 1;
  /// Captured graph sizes: batches are padded to multiples of this (1: no padding). Policy
  /// waterline_hold.
  std::int64_t graph_step = 1;
  /// Migration: at most so many moves per 1,000 placed requests. 0 switches it off.
  std::int64_t moves_permille = 0;
  /// At most one plan in this span (8 steps of about 33 ms).
  Nanos move_interval{266'000'000};
  /// No request moves twice within this span (64 steps).
  Nanos move_rest{2'133'000'000};
  /// KV that may travel, in tokens per second. 0: no limit but `moves_permille`.
  std::int64_t move_tokens_per_s = 0;
  /// Several independent placers over the same ranks, of which this is number `placer` (0 ...). Each prefers
  /// its share of the ranks, and the shares rotate every `lease_period` (8 steps). 1: no leases.
  std::int64_t placers = 1, placer = 0;
  Nanos lease_period{266'000'000};
};

/// The placement part of one cluster's configuration.
DecodeConfig decode_config(const model::DecodeConfig& config);

/// What one decode rank can hold. Ranks of one kind (equal in all three) share an index.
struct DecodeCapacity {
  TokenCount kv;                       // of its blocks, below 2^30
  std::int64_t max_running = 32;       // captured batch size; 1 ... 65,535
  std::int64_t speed_permille = 1000;  // of the nominal rank; loads are compared divided by it
  constexpr auto operator<=>(const DecodeCapacity&) const = default;
};

/// Both dimensions of a rank: what MoE and linear layers feel, and what attention feels. Reservations count.
struct DecodeLoad {
  RankId rank;
  std::int64_t running = 0;
  TokenCount kv;
  constexpr bool operator==(const DecodeLoad&) const = default;
};

/// A rank's own word, used to correct the placer's accounting, never to replace it.
struct DecodeReport {
  struct Running {
    RequestId id;
    TokenCount tokens;
  };
  RankId rank;
  std::int64_t running = 0;
  TokenCount kv;
  /// With `listed`, the running requests one by one (and `running`, `kv` are their sums).
  bool listed = false;
  std::vector<Running> requests;
  /// The instant, on the placer's clock, at which this was true: receipt less age. Older reports than the
  /// last one of the rank are ignored.
  Nanos as_of;
};

struct DecodeRequest {
  RequestId id;
  TokenCount tokens;  // KV at hand-over: prompt and what was generated already
  /// The other requests waiting for a place in this moment: they raise the line as they will raise the load.
  TokenCount queued_tokens{0};
  /// Since when it waits for a place; bounds a hold.
  Nanos waiting_since;
  /// How many requests behind it in the queue were placed before it; the host counts, `decide_next` bounds
  /// it.
  std::int64_t overtaken = 0;
  /// How many requests `queued_tokens` are.
  std::int64_t queued = 0;
};

enum class DecodeRule : std::uint8_t {
  kFewestBelowLine,  // among the ranks that stay under the line, the fewest running
  kLeastKv,          // no rank stays under it (or the policy looks at KV only)
  kFewest,           // fewest running, one dimension only
  kNextInTurn,       // round robin
  kHeldByCeiling,    // waiting beats lifting a rank above the ceiling; ask again after the next change
  kHeldNoRoom,       // every rank is full: wait for an end
  kNeverFits,        // no rank could hold it even empty: refuse it
  kNoRanks,          // no decode rank is known
  kFewestExpected,   // among the ranks that stay under the line, the fewest expected to run soon
  kLeastPotential,   // the least rise of the potential
  kHeldByCount,      // the same for the ceiling of running requests, or of the step's graph size
  kHeldInGroup,      // its group was chosen earlier and has no room; other groups are not looked at
  kMovedThere,       // it was moved, and this is the place that was kept for it
};
std::string_view name(DecodeRule rule);

/// The numbers that led to a decision. Loads are those before the request is placed.
struct DecodeReason {
  DecodeRule rule = DecodeRule::kNoRanks;
  std::optional<DecodeLoad> winner;
  std::optional<DecodeLoad> runner_up;  // what would have been chosen without the winner, by the same rule
  TokenCount waterline;                 // KV (request included) up to which a nominal rank counts; 0: none
  TokenCount mean_kv;                   // per nominal rank, the waiting requests included
  TokenCount ceiling;                   // 0: none
  std::int64_t fitting = 0;             // ranks that have room and stay under the line
  std::int64_t ranks = 0;               // all that are known
  /// What the winner is expected to run `horizon_tokens` from now, in thousandths; 0: the policy looks at
  /// now.
  std::int64_t expected_running_permille = 0;
};

struct DecodeDecision {
  std::optional<RankId> rank;  // none: held or refused
  bool hold = false;           // no place now, but one may come: keep it queued
  DecodeReason reason;
};

/// Which of the waiting requests goes next, and where.
struct DecodePick {
  std::size_t index = 0;  // in the span that was given
  DecodeDecision decision;
};

/// A request that should leave its rank, and the numbers that led to it. Potentials are in parts of an ideal
/// step (potential.h), of the two ranks together.
struct DecodeMove {
  RequestId id;
  RankId from, to;
  TokenCount tokens;              // its KV, which has to travel
  bool swaps_with_next = false;   // the next move of the list goes the other way and belongs to this one
  DecodeLoad from_load, to_load;  // before
  double potential_before = 0, potential_after = 0;
  double cost = 0;                        // what the fall had to exceed
  std::int64_t budget_left_permille = 0;  // thousandths of a move, after this one
};
std::string describe(const DecodeMove& move);

/// One line for logs: "decode group 1 rank 3 (7 running, 81000 KV tokens): fewest running of the 12 ranks (of
/// 16) under the waterline 98304 (mean KV 83000); runner-up group 0 rank 2 (8 running, 70100 KV tokens)".
std::string describe(const DecodeDecision& decision);

}  // namespace trimtab::policy
