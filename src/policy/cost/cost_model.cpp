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
  TRIMTAB_CHECK(c < prompt, "nothing is left to compute");
  const std::int64_t end = std::min(prompt.value, limits.end.value);
  const std::int64_t rest = end - c.value;
  ChunkDecision decision;
  decision.reason = ChunkReason::kNotReady;
  if (rest <= 0) return decision;

  const std::int64_t q_max = std::min(rest, limits.tokens_max.value);
  std::int64_t q = solve_budget(budget.value, c.value, prompt.value, q_max);
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
