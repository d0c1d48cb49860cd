#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "policy/prefill/rank_scheduler.h"

namespace trimtab::policy {

struct GroupStepConfig {
  base::Nanos budget{300'000'000};  // what the votes agreed on, in the quota's scope
  /// Of both budgets what ranks keep for helping with work that spreads, while there is any.
  std::int64_t help_percent = 10;
  /// What a rank takes on top for queries of a peer's request, of their time.
  double communication = 0;
};

/// Queries of a long request, behind what its own rank computes of it in this step.
struct HelpChunk {
  std::size_t rank = 0;                       // whose request it is
  PlannedChunk chunk;                         // of all that take part
  base::Nanos attention, rest;                // predicted, without communication
  std::vector<base::TokenCount> rank_tokens;  // of each rank; sum: chunk.tokens
};

struct GroupStep {
  TwoBudgets budget;            // the best split found
  std::vector<StepPlan> ranks;  // what each rank computes of its own requests
  std::vector<HelpChunk> helps;
  double work_ratio = 0;  // predicted: work over ranks x time of the step, its fixed part included
};

/// One step of a prefill group under two budgets, one for attention and one for the rest, with help.
///
/// Why. Ranks meet twice a layer, so a step takes max(attention) + max(rest) over them. A single budget for
/// the sum of both lets one rank spend it on attention (a long context) and another on the rest (a fresh
/// prompt); the step then takes nearly twice the budget. Algorithm. The agreed time is split into a budget
/// for each part; every rank fills both from several of its requests (StepFilling), `help_percent` less while
/// work that spreads is there. Then ranks take queries of such work of their peers, in order of ids, cut so
/// that the ranks end level (a chunk's queries can be cut anywhere; the layers' keys travel); what is left
/// is filled with own work again. Several splits are tried; the step with the most work for its time wins.
/// Source: own, from the step model of system facts, section 3: vector bin packing with divisible items.
/// Cost: nine plans a rank, in a step of hundreds of milliseconds; between machines, nine pairs of sums and
/// the winner's number. Weakness: what a rank holds bounds what it can mix; the less work per step is the
/// goal of nobody's deadline: a heavy request on a rank full of light ones gets its budget of attention, no
/// more.
GroupStep compose_step(std::span<const RankScheduler* const> ranks, const GroupStepConfig& config);

}  // namespace trimtab::policy
