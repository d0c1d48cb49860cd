#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <variant>

#include "base/units.h"
#include "model/profile.h"
#include "model/request.h"
#include "policy/cost/flops.h"
#include "policy/cost/quadratic.h"

namespace trimtab::policy {

/// What one chunk may not exceed, besides the budget.
struct ChunkLimits {
  base::TokenCount tokens_max{32'768};  // what is left of the rank's tokens in this step
  base::TokenCount tokens_min{128};     // of an otherwise empty step
  base::TokenCount end =
      base::TokenCount{INT64_MAX};           // tokens from here on are not ready (an image's embeddings)
  std::span<const model::ImageSpan> images;  // ascending, disjoint; no chunk ends inside one
  bool empty_step = false;                   // nothing else is in this rank's step
};

/// Why a chunk has the length it has.
enum class ChunkReason : std::uint8_t {
  kEndOfPrompt,    // the rest of the prompt fits
  kBudget,         // one more token would cost more than the budget
  kTokensMax,      // the limit on tokens per rank and step
  kImageBoundary,  // cut back so as not to end inside an image
  kMinimum,        // over the budget or the token limit: the least an otherwise empty step takes
  kNotReady,       // stops where tokens are not ready
};
std::string_view to_string(ChunkReason reason);

struct ChunkDecision {
  base::TokenCount tokens;  // q; 0: nothing of this request fits
  base::Nanos cost;         // of the chunk, in the quota's scope
  base::TokenCount
      budget_tokens;  // what the budget alone would have allowed, at most `tokens_max` and the rest
  ChunkReason reason = ChunkReason::kBudget;
};

/// What a rank may take of each part of a step between which ranks meet.
struct TwoBudgets {
  base::Nanos attention, rest;
};

/// Predicted time of prefill work, in the unit of every prefill decision: nanoseconds of compute quota.
///
/// One chunk is (q, c, prompt): q tokens computed in this step, c tokens before them already computed or hit,
/// `prompt` the whole prompt's length, which V4.1's exact form needs. The quota bounds attention only (the
/// default, as DualPath's 300 ms does) or the whole step, whose fixed part then counts once a step. Pure and
/// cheap: it is called for every queued request and every chunk.
class CostModel {
 public:
  CostModel(const model::CostSpec& spec, model::QuotaScope scope);
  explicit CostModel(const model::Profile& profile) : CostModel(profile.cost, profile.quota_scope) {}

  /// Of one chunk, in the quota's scope, without the step's fixed part. 0 for q = 0.
  base::Nanos cost(base::TokenCount q, base::TokenCount c, base::TokenCount prompt) const;
  /// A step's fixed part in the quota's scope: 0 when the quota bounds attention only.
  base::Nanos fixed() const;
  /// The quota of a request: all that is left of it, as one chunk.
  base::Nanos request(base::TokenCount hit, base::TokenCount prompt) const {
    return cost(prompt - hit, hit, prompt);
  }

  /// The same whatever the scope: for predicted latency, and to compare with measured steps.
  base::Nanos attention(base::TokenCount q, base::TokenCount c, base::TokenCount prompt) const;
  base::Nanos whole(base::TokenCount q, base::TokenCount c, base::TokenCount prompt) const;
  base::Nanos step_fixed() const;
  /// What is not attention: projections, dispatch and MoE.
  base::Nanos rest(base::TokenCount q, base::TokenCount c, base::TokenCount prompt) const {
    return whole(q, c, prompt) - attention(q, c, prompt);
  }

  /// The largest q with cost(q) <= budget < cost(q + 1), exactly, then cut by the limits: never inside an
  /// image; an otherwise empty step takes at least `tokens_min` (or the rest, or up to the end of the image
  /// that this reaches into) whatever the budget, or cost(1, c) > budget would stall for ever.
  ChunkDecision solve(base::Nanos budget, base::TokenCount c, base::TokenCount prompt,
                      const ChunkLimits& limits) const;

  /// The same for a rank whose peers wait for it twice a layer: the largest q with attention(q) <=
  /// budget.attention and rest(q) <= budget.rest. `cost` of the answer is in the quota's scope. Source: the
  /// step's time is max(attention) + max(rest) over the ranks. Cost: a binary search, log2(q) evaluations.
  ChunkDecision solve(const TwoBudgets& budget, base::TokenCount c, base::TokenCount prompt,
                      const ChunkLimits& limits) const;
  /// The same for whatever bounds a chunk: the largest q for which `fits`, which must hold for every q below
  /// one that fits.
  ChunkDecision solve(const std::function<bool(base::TokenCount)>& fits, base::TokenCount c,
                      base::TokenCount prompt, const ChunkLimits& limits) const;

  model::QuotaScope scope() const { return scope_; }

 private:
  std::int64_t solve_budget(std::int64_t budget_ns, std::int64_t c, std::int64_t prompt,
                            std::int64_t q_max) const;
  ChunkDecision cut(std::int64_t q, std::int64_t q_max, base::TokenCount c, base::TokenCount prompt,
                    const ChunkLimits& limits) const;

  std::variant<QuadraticForm, FlopsForm> form_;
  model::QuotaScope scope_;
  base::Nanos step_fixed_;
};

}  // namespace trimtab::policy
