#include "policy/prefill/rank_scheduler.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace trimtab::policy {

namespace {

using base::Nanos;
using base::TokenCount;

}  // namespace

RankConfig RankConfig::from(const model::PrefillConfig& config) {
  RankConfig rank;
  rank.step_budget = Nanos{config.step_budget_ms * 1'000'000};
  rank.chunk_tokens_max = TokenCount{config.chunk_tokens_max};
  rank.chunk_tokens_min = TokenCount{config.chunk_tokens_min};
  rank.vote = config.vote == "mean"       ? VoteRule::kMean
              : config.vote == "min_work" ? VoteRule::kMinWork
                                          : VoteRule::kMin;
  rank.vote_floor = Nanos{config.vote_floor_ms * 1'000'000};
  return rank;
}

std::string to_string(const Vote& vote) {
  char text[160];
  std::snprintf(
      text, sizeof text,
      vote.idle ? "idle: votes its cap of %.1f ms" : "votes %.1f ms: cap %.1f ms less overrun %.1f ms",
      base::to_millis(vote.vote), base::to_millis(vote.cap), base::to_millis(vote.overrun));
  return text;
}

std::string to_string(const StepPlan& plan) {
  char text[160];
  std::snprintf(text, sizeof text, "%zu chunks, predicted %.1f of a budget of %.1f ms", plan.chunks.size(),
                base::to_millis(plan.predicted), base::to_millis(plan.budget));
  return text;
}

RankScheduler::RankScheduler(const RankConfig& config, CostModel cost)
    : config_(config), cost_(std::move(cost)) {
  TRIMTAB_CHECK(config.step_budget > Nanos{0} && config.chunk_tokens_min >= TokenCount{1} &&
                config.chunk_tokens_max >= config.chunk_tokens_min && config.vote_floor_ratio > 0 &&
                config.vote_floor_ratio <= 1);
}

RankRequest* RankScheduler::find(model::RequestId id) {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [id](const RankRequest& each) { return each.id == id; });
  return found == requests_.end() ? nullptr : &*found;
}

void RankScheduler::add(RankRequest request) {
  TRIMTAB_CHECK(request.computed >= TokenCount{0} && request.computed < request.prompt, "nothing to compute");
  TRIMTAB_CHECK(find(request.id) == nullptr, "this request is here already");
  requests_.push_back(std::move(request));
}

bool RankScheduler::set_ready(model::RequestId id, TokenCount ready) {
  RankRequest* request = find(id);
  if (request == nullptr) return false;
  request->ready = ready;
  return true;
}

bool RankScheduler::remove(model::RequestId id) {
  return std::erase_if(requests_, [id](const RankRequest& each) { return each.id == id; }) > 0;
}

Nanos RankScheduler::cap() const {
  if (requests_.empty()) return config_.step_budget;
  Nanos largest{0};
  for (const RankRequest& request : requests_) largest = std::max(largest, request.batch_cap);
  return std::min(config_.step_budget, largest);
}

Vote RankScheduler::vote() const {
  Vote vote;
  vote.idle = requests_.empty();
  vote.cap = cap();
  vote.overrun = overrun_;
  const Nanos floor{
      static_cast<std::int64_t>(config_.vote_floor_ratio * static_cast<double>(vote.cap.value))};
  vote.vote = vote.idle ? vote.cap : std::max(vote.cap - overrun_, floor);
  if (config_.vote == VoteRule::kMin) return vote;
  // Who has nothing to do asks for no time; MIN passes it over.
  vote.vote = vote.idle ? Nanos{0} : std::min(vote.vote, waiting_quota(vote.vote) + cost_.fixed());
  return vote;
}

Nanos agree(std::span<const Nanos> votes, const RankConfig& config) {
  if (votes.empty()) return base::kForever;
  if (config.vote == VoteRule::kMin) return *std::min_element(votes.begin(), votes.end());
  if (config.vote == VoteRule::kMinWork) {
    Nanos least = base::kForever;
    for (const Nanos vote : votes) least = vote > Nanos{0} ? std::min(least, vote) : least;
    return std::max(least, config.vote_floor);
  }
  __int128 sum = 0;
  for (const Nanos vote : votes) sum += vote.value;
  return std::max(Nanos{static_cast<std::int64_t>(sum / static_cast<__int128>(votes.size()))},
                  config.vote_floor);
}

void append(StepPlan& plan, const CostModel& cost, const RankRequest& request, TokenCount tokens,
            ChunkReason reason) {
  const Nanos attention = cost.attention(tokens, request.computed, request.prompt);
  const Nanos whole = cost.whole(tokens, request.computed, request.prompt);
  const Nanos in_scope = cost.scope() == model::QuotaScope::kAttention ? attention : whole;
  plan.chunks.push_back({request.id, tokens, request.computed, in_scope, reason});
  plan.predicted += in_scope;
  plan.predicted_whole += whole;
  plan.predicted_attention += attention;
}

StepPlan RankScheduler::plan(Nanos budget) const {
  StepPlan plan;
  plan.budget = budget;
  Nanos left = budget - cost_.fixed();
  TokenCount tokens_left = config_.chunk_tokens_max;
  for (const RankRequest& request : requests_) {
    if (tokens_left <= TokenCount{0}) break;
    ChunkLimits limits;
    limits.tokens_max = tokens_left;
    limits.tokens_min = config_.chunk_tokens_min;
    limits.end = request.ready;
    limits.images = request.images;
    limits.empty_step = plan.chunks.empty();
    const ChunkDecision chunk = cost_.solve(left, request.computed, request.prompt, limits);
    if (chunk.tokens > TokenCount{0}) {
      append(plan, cost_, request, chunk.tokens, chunk.reason);
      left -= chunk.cost;
      tokens_left -= chunk.tokens;
    }
    // First come, first served: who was cut by the budget ends the step. What was cut by an image could not
    // use the rest of the budget, so the next in line may.
    const bool goes_on = chunk.reason == ChunkReason::kEndOfPrompt ||
                         chunk.reason == ChunkReason::kNotReady ||
                         chunk.reason == ChunkReason::kImageBoundary;
    if (!goes_on) break;
  }
  if (!plan.chunks.empty()) {
    plan.predicted += cost_.fixed();
    plan.predicted_whole += cost_.step_fixed();
  }
  return plan;
}

std::vector<model::RequestId> RankScheduler::done(const StepPlan& plan, Nanos actual) {
  std::vector<model::RequestId> complete;
  for (const PlannedChunk& chunk : plan.chunks) {
    RankRequest* request = find(chunk.id);
    if (request == nullptr) continue;
    TRIMTAB_CHECK(request->computed == chunk.computed, "a plan was reported twice, or is not the last one");
    request->computed += chunk.tokens;
    if (request->computed == request->prompt) complete.push_back(chunk.id);
  }
  for (const model::RequestId id : complete) remove(id);

  overrun_ = Nanos{0};
  if (plan.predicted_whole > Nanos{0}) {
    // Only the whole step can be timed: the scope's part of it is taken to be as large as predicted.
    const double in_scope = static_cast<double>(actual.value) * static_cast<double>(plan.predicted.value) /
                            static_cast<double>(plan.predicted_whole.value);
    // A minimum chunk may be planned beyond the budget; that is no fault of the prediction.
    const Nanos promised = std::max(plan.budget, plan.predicted);
    overrun_ = std::max(Nanos{0}, Nanos{static_cast<std::int64_t>(in_scope)} - promised);
  }
  return complete;
}

Nanos RankScheduler::waiting_quota(Nanos enough) const {
  Nanos sum{0};
  for (const RankRequest& request : requests_) {
    sum += cost_.request(request.computed, request.prompt);
    if (sum >= enough) break;
  }
  return sum;
}

}  // namespace trimtab::policy
