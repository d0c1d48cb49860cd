#include "policy/cost/cost_model.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {

namespace {

using base::Nanos;
using base::TokenCount;

std::variant<QuadraticForm, FlopsForm> make_form(const model::CostSpec& spec) {
  if (const auto* quadratic = std::get_if<model::QuadraticCost>(&spec)) return QuadraticForm(*quadratic);
  return FlopsForm(std::get<model::FlopsCost>(spec));
}

/// The image that position `at` would cut: begin < at < end. None: at is a legal end of a chunk.
const model::ImageSpan* image_cut_at(std::span<const model::ImageSpan> images, std::int64_t at) {
  const auto after = std::partition_point(images.begin(), images.end(), [at](const model::ImageSpan& image) {
    return std::int64_t{image.position} < at;
  });
  if (after == images.begin()) return nullptr;
  const model::ImageSpan& image = *(after - 1);
  return at < std::int64_t{image.position} + image.tokens ? &image : nullptr;
}

/// Tokens from c on that are ready.
std::int64_t ready_tokens(TokenCount c, TokenCount prompt, const ChunkLimits& limits) {
  TRIMTAB_CHECK(c < prompt, "nothing is left to compute");
  return std::min(prompt.value, limits.end.value) - c.value;
}

}  // namespace

std::string_view to_string(ChunkReason reason) {
  switch (reason) {
    case ChunkReason::kEndOfPrompt:
      return "end of prompt";
    case ChunkReason::kBudget:
      return "budget";
    case ChunkReason::kTokensMax:
      return "tokens per step";
    case ChunkReason::kImageBoundary:
      return "image boundary";
    case ChunkReason::kMinimum:
      return "minimum of an empty step";
    case ChunkReason::kNotReady:
      return "embeddings not ready";
  }
  return "?";
}

CostModel::CostModel(const model::CostSpec& spec, model::QuotaScope scope)
    : form_(make_form(spec)),
      scope_(scope),
      step_fixed_(std::visit([](const auto& cost) { return Nanos{cost.fixed_ns}; }, spec)) {}

Nanos CostModel::attention(TokenCount q, TokenCount c, TokenCount prompt) const {
  if (const auto* quadratic = std::get_if<QuadraticForm>(&form_)) {
    return Nanos{quadratic->attention_ns(q.value, c.value)};
  }
  return Nanos{std::get<FlopsForm>(form_).attention_ns(q.value, c.value, prompt.value)};
}

Nanos CostModel::whole(TokenCount q, TokenCount c, TokenCount prompt) const {
  if (const auto* quadratic = std::get_if<QuadraticForm>(&form_)) {
    return Nanos{quadratic->whole_ns(q.value, c.value)};
  }
  return Nanos{std::get<FlopsForm>(form_).whole_ns(q.value, c.value, prompt.value)};
}

Nanos CostModel::cost(TokenCount q, TokenCount c, TokenCount prompt) const {
  return scope_ == model::QuotaScope::kAttention ? attention(q, c, prompt) : whole(q, c, prompt);
}

Nanos CostModel::fixed() const { return scope_ == model::QuotaScope::kAttention ? Nanos{0} : step_fixed_; }

Nanos CostModel::step_fixed() const { return step_fixed_; }

std::int64_t CostModel::solve_budget(std::int64_t budget_ns, std::int64_t c, std::int64_t prompt,
                                     std::int64_t q_max) const {
  const bool attention_only = scope_ == model::QuotaScope::kAttention;
  if (const auto* quadratic = std::get_if<QuadraticForm>(&form_)) {
    return attention_only ? quadratic->solve_attention(budget_ns, c, q_max)
                          : quadratic->solve_whole(budget_ns, c, q_max);
  }
  return std::get<FlopsForm>(form_).solve(attention_only, budget_ns, c, prompt, q_max);
}

ChunkDecision CostModel::solve(Nanos budget, TokenCount c, TokenCount prompt,
                               const ChunkLimits& limits) const {
  const std::int64_t q_max = std::min(ready_tokens(c, prompt, limits), limits.tokens_max.value);
  const std::int64_t q = q_max > 0 ? solve_budget(budget.value, c.value, prompt.value, q_max) : 0;
  return cut(q, q_max, c, prompt, limits);
}

ChunkDecision CostModel::solve(const TwoBudgets& budget, TokenCount c, TokenCount prompt,
                               const ChunkLimits& limits) const {
  return solve(
      [&](TokenCount q) {
        const Nanos attends = attention(q, c, prompt);
        return attends <= budget.attention && whole(q, c, prompt) - attends <= budget.rest;
      },
      c, prompt, limits);
}

ChunkDecision CostModel::solve(const std::function<bool(TokenCount)>& fits, TokenCount c, TokenCount prompt,
                               const ChunkLimits& limits) const {
  const std::int64_t q_max = std::min(ready_tokens(c, prompt, limits), limits.tokens_max.value);
  std::int64_t q = 0;
  if (q_max > 0 && fits(TokenCount{q_max})) {
    q = q_max;
  } else {
    for (std::int64_t above = q_max; above - q > 1;) {
      const std::int64_t middle = q + (above - q) / 2;
      (fits(TokenCount{middle}) ? q : above) = middle;
    }
  }
  return cut(q, q_max, c, prompt, limits);
}

/// What the limits make of the q tokens that a budget allows.
ChunkDecision CostModel::cut(std::int64_t q, std::int64_t q_max, TokenCount c, TokenCount prompt,
                             const ChunkLimits& limits) const {
  const std::int64_t rest = ready_tokens(c, prompt, limits);
  ChunkDecision decision;
  decision.reason = ChunkReason::kNotReady;
  if (rest <= 0) return decision;
  decision.budget_tokens = TokenCount{std::max<std::int64_t>(q, 0)};
  decision.reason = q < q_max                       ? ChunkReason::kBudget
                    : q_max < rest                  ? ChunkReason::kTokensMax
                    : c.value + rest < prompt.value ? ChunkReason::kNotReady
                                                    : ChunkReason::kEndOfPrompt;
  if (q > 0) {
    if (const auto* image = image_cut_at(limits.images, c.value + q)) {
      q = std::max<std::int64_t>(image->position - c.value, 0);
      decision.reason = ChunkReason::kImageBoundary;
    }
  }
  const std::int64_t least = std::min(limits.tokens_min.value, rest);
  if (limits.empty_step && q < least) {
    q = least;
    if (const auto* image = image_cut_at(limits.images, c.value + q)) {
      q = std::min<std::int64_t>(image->position + std::int64_t{image->tokens} - c.value, rest);
    }
    decision.reason = ChunkReason::kMinimum;
  }
  decision.tokens = TokenCount{std::max<std::int64_t>(q, 0)};
  if (q > 0) decision.cost = cost(decision.tokens, c, prompt);
  return decision;
}

}  // namespace trimtab::policy
