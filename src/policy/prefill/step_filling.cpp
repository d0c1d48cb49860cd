#include "policy/prefill/step_filling.h"

#include <algorithm>

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;

constexpr std::int64_t kSlices = 16;  // of a budget: heavy and light work take turns by them

/// a / b > c / d, for what is not negative.
bool more(Nanos a, Nanos b, Nanos c, Nanos d) {
  return static_cast<__int128>(a.value) * d.value > static_cast<__int128>(c.value) * b.value;
}

}  // namespace

StepFilling::StepFilling(const RankScheduler& rank, const TwoBudgets& budget)
    : rank_(rank), budget_(budget), tokens_left_(rank.config().chunk_tokens_max) {
  const auto& requests = rank.requests();
  taken_.resize(requests.size());
  reasons_.resize(requests.size(), ChunkReason::kBudget);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RankRequest& each = requests[i];
    const TokenCount rest = each.prompt - each.computed;
    const Nanos attention = rank.cost().attention(rest, each.computed, each.prompt);
    const bool heavy =
        more(attention, rank.cost().rest(rest, each.computed, each.prompt), budget.attention, budget.rest);
    lines_[heavy ? 0 : 1].push_back(i);
  }
}

void StepFilling::fill(TwoBudgets& left, bool spread) {
  std::array<std::size_t, 2> at{};
  while (left.rest > Nanos{0} && tokens_left_ > TokenCount{0}) {
    // Whichever budget is ahead of the other waits for it.
    const bool ahead =
        more(budget_.attention - left.attention, budget_.attention, budget_.rest - left.rest, budget_.rest);
    std::size_t line = ahead ? 1 : 0;
    if (at[line] == lines_[line].size()) line = 1 - line;
    if (at[line] == lines_[line].size()) return;
    const std::size_t i = lines_[line][at[line]];
    const bool may = spread || !rank_.requests()[i].spreads;
    if (!may || !take(i, line == 0, left)) ++at[line];
  }
}

ChunkLimits StepFilling::limits(std::size_t i) const {
  ChunkLimits limits;
  limits.tokens_max = tokens_left_;
  limits.tokens_min = rank_.config().chunk_tokens_min;
  limits.end = rank_.requests()[i].ready;
  limits.images = rank_.requests()[i].images;
  return limits;
}

/// The next slice of a request. False when this step has nothing more for it.
bool StepFilling::take(std::size_t i, bool heavy, TwoBudgets& left) {
  const RankRequest& request = rank_.requests()[i];
  const TokenCount from = request.computed + taken_[i];
  if (from >= request.prompt) return false;
  TwoBudgets slice = left;
  Nanos& bound = heavy ? slice.attention : slice.rest;
  bound = std::min(bound, Nanos{(heavy ? budget_.attention : budget_.rest).value / kSlices + 1});
  ChunkDecision chunk = rank_.cost().solve(slice, from, request.prompt, limits(i));
  // An image may be more than a slice.
  if (chunk.tokens == TokenCount{0}) chunk = rank_.cost().solve(left, from, request.prompt, limits(i));
  if (chunk.tokens == TokenCount{0}) return false;
  count(i, chunk.tokens, chunk.reason, left);
  return chunk.reason == ChunkReason::kBudget || chunk.reason == ChunkReason::kImageBoundary;
}

void StepFilling::count(std::size_t i, TokenCount tokens, ChunkReason reason, TwoBudgets& left) {
  const RankRequest& request = rank_.requests()[i];
  const TokenCount from = request.computed + taken_[i];
  const Nanos attention = rank_.cost().attention(tokens, from, request.prompt);
  left.attention -= attention;
  left.rest -= rank_.cost().whole(tokens, from, request.prompt) - attention;
  tokens_left_ -= tokens;
  taken_[i] += tokens;
  reasons_[i] = reason;
}

void StepFilling::take_minimum(TwoBudgets& left) {
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const RankRequest& request = rank_.requests()[i];
    ChunkLimits least = limits(i);
    least.empty_step = true;
    const ChunkDecision chunk = rank_.cost().solve(budget_, request.computed, request.prompt, least);
    if (chunk.tokens > TokenCount{0}) return count(i, chunk.tokens, chunk.reason, left);
  }
}

bool StepFilling::empty() const {
  return std::ranges::all_of(taken_, [](TokenCount tokens) { return tokens == TokenCount{0}; });
}

StepPlan StepFilling::plan(Nanos total) const {
  StepPlan plan;
  plan.budget = total;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i] > TokenCount{0}) append(plan, rank_.cost(), rank_.requests()[i], taken_[i], reasons_[i]);
  }
  if (!plan.chunks.empty()) {
    plan.predicted += rank_.cost().fixed();
    plan.predicted_whole += rank_.cost().step_fixed();
  }
  return plan;
}

}  // namespace trimtab::policy
