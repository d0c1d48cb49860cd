#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/cluster_config.h"
#include "model/request.h"
#include "policy/cost/cost_model.h"

namespace trimtab::policy {

/// How the votes of a group's ranks become the budget of their step.
enum class VoteRule : std::uint8_t {
  kMin,      // the least cap: the ranks finish together, no rank overruns alone
  kMinWork,  // the least of min(cap, own work) over the ranks that have work
  kMean,     // the mean of min(cap, own work): small steps when there is little to do, full ones when much
};

struct RankConfig {
  base::Nanos step_budget{300'000'000};  // compute_quota_limit
  base::TokenCount chunk_tokens_max{32'768};
  base::TokenCount chunk_tokens_min{128};
  /// A vote never falls below this share of the cap, or one slow step would starve the whole group.
  double vote_floor_ratio = 0.25;
  VoteRule vote = VoteRule::kMin;
  base::Nanos vote_floor{50'000'000};  // kMinWork, kMean: no budget is below it

  static RankConfig from(const model::PrefillConfig& config);
};

/// A request that was given to this rank.
struct RankRequest {
  model::RequestId id;
  base::TokenCount prompt;
  base::TokenCount computed;               // c: the hit at first
  base::Nanos batch_cap = base::kForever;  // its tier's cap on one batch's quota
  std::vector<model::ImageSpan> images;    // ascending
  base::TokenCount ready{INT64_MAX};       // tokens from here on wait for an image's embeddings
  bool spreads = false;                    // peers may compute queries of it (compose_step)
};

struct Vote {
  base::Nanos vote;
  base::Nanos cap;      // the step budget, or the largest batch cap of the waiting requests if that is less
  base::Nanos overrun;  // how far this rank's steps are beyond their budgets
  bool idle = false;
};
std::string to_string(const Vote& vote);

/// The budget of the group's step, of one vote of each of its ranks (an all-reduce MIN, or a SUM over the
/// number of ranks). Of no votes: kForever.
base::Nanos agree(std::span<const base::Nanos> votes, const RankConfig& config);

struct PlannedChunk {
  model::RequestId id;
  base::TokenCount tokens;    // q
  base::TokenCount computed;  // c, before
  base::Nanos predicted;      // in the quota's scope
  ChunkReason reason = ChunkReason::kBudget;
};

struct StepPlan {
  std::vector<PlannedChunk> chunks;  // empty: an empty batch
  base::Nanos budget;                // what the group agreed on
  base::Nanos predicted;             // in the quota's scope, the step's fixed part included
  base::Nanos predicted_whole;       // of the whole step, whatever the scope
  base::Nanos predicted_attention;   // of that, between the ranks' meetings; the fixed part is in the rest
};
std::string to_string(const StepPlan& plan);
/// Adds a chunk to a plan, and what it is predicted to take.
void append(StepPlan& plan, const CostModel& cost, const RankRequest& request, base::TokenCount tokens,
            ChunkReason reason);

/// Level 4 of prefill balancing, inside one rank: FIFO, cut into chunks that fill the step's budget.
///
///   vote() -> all-reduce MIN over the group -> plan(budget) -> compute the chunks -> done(plan, actual)
///
/// An idle rank votes its cap, a loaded rank its cap less its own overrun and never its backlog: a vote that
/// fell with the backlog would shrink everyone's steps just when there is work. The group takes the MIN, so
/// that its ranks finish together and no rank whose prediction is off overruns alone. Under VoteRule::kMean
/// a rank votes min(cap, own work), 0 when it is idle, and the group takes the mean: with little to do,
/// nobody waits a whole quota for the one rank that has a long prompt. Source: system facts, section 3;
/// DualPath's intra-engine scheduler (arXiv 2602.21548), with a closed form in place of its binary search.
/// Cost: one solve per request touched, in a step of milliseconds. Weakness: a MIN of caps makes short work
/// wait out full steps at low load, a MEAN pays more fixed parts; FIFO lets a long prompt hold the ones
/// behind.
class RankScheduler {
 public:
  RankScheduler(const RankConfig& config, CostModel cost);

  /// `computed` < `prompt`; the id must be new.
  void add(RankRequest request);
  /// Tokens before `ready` can be computed now (embeddings arrived). False when the request is not here.
  bool set_ready(model::RequestId id, base::TokenCount ready);
  bool remove(model::RequestId id);

  Vote vote() const;
  /// Chunks in FIFO order under the group's budget, at most `chunk_tokens_max` tokens together. Changes
  /// nothing. Requests whose next token is not ready keep their place and are passed over.
  StepPlan plan(base::Nanos budget) const;
  /// The plan was computed; `actual` is the time of the whole step on this rank, without waiting for its
  /// peers. Requests removed meanwhile are ignored. Returns those whose prompt is complete; they are
  /// forgotten.
  std::vector<model::RequestId> done(const StepPlan& plan, base::Nanos actual);

  std::size_t waiting() const { return requests_.size(); }
  /// Predicted quota of all that waits here; counting ends where it reaches `enough`.
  base::Nanos waiting_quota(base::Nanos enough = base::kForever) const;
  const CostModel& cost() const { return cost_; }
  const RankConfig& config() const { return config_; }
  const std::deque<RankRequest>& requests() const { return requests_; }

 private:
  base::Nanos cap() const;
  RankRequest* find(model::RequestId id);

  RankConfig config_;
  CostModel cost_;
  std::deque<RankRequest> requests_;
  base::Nanos overrun_;
};

}  // namespace trimtab::policy
