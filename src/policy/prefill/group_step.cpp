#include "policy/prefill/group_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "policy/prefill/step_filling.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;

/// Tried splits: attention's share of the time. The first of equals wins.
constexpr std::array kSplits = {0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9};

Nanos scaled(Nanos time, double factor) {
  return Nanos{static_cast<std::int64_t>(static_cast<double>(time.value) * factor)};
}

double ratio(Nanos of, Nanos to) { return static_cast<double>(of.value) / static_cast<double>(to.value); }

TwoBudgets split(const CostModel& cost, Nanos budget, double share) {
  const Nanos time = std::max(budget - cost.fixed(), Nanos{2});
  // The quota bounds attention alone: then the split says how long the rest may take beside it.
  if (cost.scope() == model::QuotaScope::kAttention) return {time, scaled(time, 1 / share - 1) + Nanos{1}};
  const Nanos attention = std::clamp(scaled(time, share), Nanos{1}, time - Nanos{1});
  return {attention, time - attention};
}

/// A request that peers may help with, and what its rank takes of it itself.
struct Spread {
  std::size_t rank, index;
  const RankRequest* request;
};

std::vector<Spread> spread_work(std::span<const RankScheduler* const> ranks) {
  std::vector<Spread> out;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < ranks[r]->requests().size(); ++i) {
      const RankRequest& request = ranks[r]->requests()[i];
      if (request.spreads) out.push_back({r, i, &request});
    }
  }
  std::ranges::sort(out, {}, [](const Spread& each) { return each.request->id; });
  return out;
}

/// How much of (attention, rest) fits what each rank has left: 1 is all of it on that rank.
class Rooms {
 public:
  Rooms(std::span<const TwoBudgets> left, std::size_t home, double communication)
      : left_(left), home_(home), factor_(1 + communication) {}

  double of(std::size_t r, Nanos attention, Nanos rest) const {
    const double factor = r == home_ ? 1 : factor_;
    const double by_attention = attention > Nanos{0} ? ratio(left_[r].attention, attention) / factor : 1;
    const double by_rest = rest > Nanos{0} ? ratio(left_[r].rest, rest) / factor : 1;
    return std::clamp(std::min(by_attention, by_rest), 0.0, 1.0);
  }
  double sum(Nanos attention, Nanos rest) const {
    double sum = 0;
    for (std::size_t r = 0; r < left_.size(); ++r) sum += of(r, attention, rest);
    return sum;
  }

 private:
  std::span<const TwoBudgets> left_;
  std::size_t home_;
  double factor_;
};

/// Cuts the queries by each rank's room.
void cut(HelpChunk& help, const Rooms& rooms, std::size_t ranks) {
  const double sum = rooms.sum(help.attention, help.rest);
  const auto tokens = static_cast<double>(help.chunk.tokens.value);
  double upto = 0;
  std::int64_t given = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    upto += rooms.of(r, help.attention, help.rest) / sum;
    const auto until = r + 1 == ranks ? help.chunk.tokens.value : std::int64_t{std::llround(upto * tokens)};
    help.rank_tokens.push_back(TokenCount{until - given});
    given = until;
  }
}

/// Fills what ranks have left with queries of one request.
bool help(const Spread& spread, const CostModel& cost, const RankConfig& config, TokenCount own,
          double communication, std::vector<TwoBudgets>& left, HelpChunk& out) {
  const RankRequest& request = *spread.request;
  const TokenCount from = request.computed + own;
  if (from >= request.prompt) return false;
  ChunkLimits limits;
  limits.tokens_max = TokenCount{config.chunk_tokens_max.value * static_cast<std::int64_t>(left.size())};
  limits.end = request.ready;
  limits.images = request.images;
  const Rooms rooms(left, spread.rank, communication);
  const ChunkDecision chunk = cost.solve(
      [&](TokenCount q) {
        const Nanos attention = cost.attention(q, from, request.prompt);
        return rooms.sum(attention, cost.whole(q, from, request.prompt) - attention) >= 1;
      },
      from, request.prompt, limits);
  // Less than the least chunk is not worth its messages.
  if (chunk.tokens < std::min(config.chunk_tokens_min, request.prompt - from)) return false;
  out.rank = spread.rank;
  out.chunk = {request.id, chunk.tokens, from, chunk.cost, chunk.reason};
  out.attention = cost.attention(chunk.tokens, from, request.prompt);
  out.rest = cost.whole(chunk.tokens, from, request.prompt) - out.attention;
  cut(out, rooms, left.size());
  for (std::size_t r = 0; r < left.size(); ++r) {
    const double part = static_cast<double>(out.rank_tokens[r].value) /
                        static_cast<double>(chunk.tokens.value) * (r == spread.rank ? 1 : 1 + communication);
    left[r].attention -= scaled(out.attention, part);
    left[r].rest -= scaled(out.rest, part);
  }
  return true;
}

/// The predicted step: work over ranks x time.
double work_ratio(const GroupStep& step, Nanos fixed, std::span<const TwoBudgets> left) {
  Nanos attention, rest, work;
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    attention = std::max(attention, step.budget.attention - left[r].attention);
    rest = std::max(rest, step.budget.rest - left[r].rest);
    if (!step.ranks[r].chunks.empty()) work += step.ranks[r].predicted_whole - fixed;
  }
  for (const HelpChunk& each : step.helps) work += each.attention + each.rest;
  const Nanos time = fixed + attention + rest;
  return time > Nanos{0} ? ratio(work, time) / static_cast<double>(step.ranks.size()) : 0;
}

GroupStep step_of(std::span<const RankScheduler* const> ranks, std::span<const Spread> spreads,
                  const GroupStepConfig& config, const TwoBudgets& budget) {
  const CostModel& cost = ranks.front()->cost();
  GroupStep step;
  step.budget = budget;
  const double kept = spreads.empty() ? 0 : static_cast<double>(config.help_percent) / 100;
  const TwoBudgets keep{scaled(budget.attention, kept), scaled(budget.rest, kept)};
  std::vector<StepFilling> fillings;
  std::vector<TwoBudgets> left(ranks.size(), {budget.attention - keep.attention, budget.rest - keep.rest});
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    fillings.emplace_back(*ranks[r], budget);
    fillings[r].fill(left[r], true);
    left[r].attention += keep.attention;
    left[r].rest += keep.rest;
  }
  for (const Spread& each : spreads) {
    HelpChunk chunk;
    if (help(each, cost, ranks[each.rank]->config(), fillings[each.rank].taken(each.index),
             config.communication, left, chunk)) {
      step.helps.push_back(std::move(chunk));
    }
  }
  const bool nothing = step.helps.empty() &&
                       std::ranges::all_of(fillings, [](const StepFilling& each) { return each.empty(); });
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (kept > 0) fillings[r].fill(left[r], false);
    if (nothing && fillings[r].empty()) fillings[r].take_minimum(left[r]);
    step.ranks.push_back(fillings[r].plan(config.budget));
  }
  step.work_ratio = work_ratio(step, cost.step_fixed(), left);
  return step;
}

}  // namespace

GroupStep compose_step(std::span<const RankScheduler* const> ranks, const GroupStepConfig& config) {
  TRIMTAB_CHECK(!ranks.empty() && config.help_percent >= 0 && config.help_percent <= 100 &&
                config.communication >= 0);
  const std::vector<Spread> spreads = spread_work(ranks);
  GroupStep best;
  for (const double share : kSplits) {
    GroupStep step = step_of(ranks, spreads, config, split(ranks.front()->cost(), config.budget, share));
    if (best.ranks.empty() || step.work_ratio > best.work_ratio) best = std::move(step);
  }
  return best;
}

}  // namespace trimtab::policy
