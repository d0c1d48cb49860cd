#include "policy/decode/fleet.h"

#include <utility>

namespace trimtab::policy {
namespace {

struct Scored {
  std::int64_t first = 0, second = 0;
  std::int64_t speed_permille = 1000;
  RankIndex::Pick pick;
  /// Compares loads divided by speeds without dividing: below 2^31 * 10^5, so it is exact.
  bool operator<(const Scored& other) const {
    const auto cross = [&](std::int64_t mine, std::int64_t theirs) {
      return std::pair(mine * other.speed_permille, theirs * speed_permille);
    };
    if (const auto [mine, theirs] = cross(first, other.first); mine != theirs) return mine < theirs;
    if (const auto [mine, theirs] = cross(second, other.second); mine != theirs) return mine < theirs;
    return pick.load.rank < other.pick.load.rank;
  }
};

/// The best two of all kinds. `ask(kind)` gives each kind's best two, `score(load)` the two keys.
template <class Ask, class Score>
RankIndex::Best merge(const DecodeLedger::Group& group, Ask&& ask, Score&& score) {
  if (group.kinds.size() == 1) return ask(*group.kinds.front());
  std::optional<Scored> first, second;
  for (const auto& kind : group.kinds) {
    const RankIndex::Best best = ask(*kind);
    for (const auto& pick : {best.winner, best.runner_up}) {
      if (!pick) continue;
      const auto [a, b] = score(pick->load);
      const Scored scored{a, b, kind->capacity().speed_permille, *pick};
      if (!first || scored < *first) {
        second = first;
        first = scored;
      } else if (!second || scored < *second) {
        second = scored;
      }
    }
  }
  RankIndex::Best best;
  if (first) best.winner = first->pick;
  if (second) best.runner_up = second->pick;
  return best;
}

std::int64_t kv_max(std::int64_t line, const RankIndex& kind, TokenCount tokens) {
  if (line == kNoLine) return kNoLine;
  const std::int64_t speed = kind.capacity().speed_permille;
  return (speed == 1000 ? line : line * speed / 1000) - tokens.value;
}

}  // namespace

RankIndex::Best fewest_running(const DecodeLedger::Group& group, TokenCount tokens, std::int64_t line) {
  return merge(
      group, [&](const RankIndex& kind) { return kind.fewest(tokens.value, kv_max(line, kind, tokens)); },
      [](const DecodeLoad& load) { return std::pair(load.running, load.kv.value); });
}

RankIndex::Best least_kv(const DecodeLedger::Group& group, TokenCount tokens) {
  return merge(
      group, [&](const RankIndex& kind) { return kind.least_kv(tokens.value); },
      [](const DecodeLoad& load) { return std::pair(load.kv.value, load.running); });
}

std::int64_t count_fitting(const DecodeLedger::Group& group, TokenCount tokens, std::int64_t line) {
  std::int64_t count = 0;
  for (const auto& kind : group.kinds)
    count += kind->count_fitting(tokens.value, kv_max(line, *kind, tokens));
  return count;
}

std::optional<RankId> settle(const RankIndex::Best& best, DecodeRule rule, DecodeReason& reason) {
  reason.rule = rule;
  if (!best.winner) return std::nullopt;
  reason.winner = best.winner->load;
  if (best.runner_up) reason.runner_up = best.runner_up->load;
  return best.winner->load.rank;
}

std::optional<RankId> under_relaxed_mean(const DecodeLedger::Group& group, TokenCount tokens,
                                         std::int64_t sum, std::int64_t relax_percent, DecodeReason& reason) {
  const std::int64_t line = sum * 10 * relax_percent / group.totals.speed_permille;
  reason.mean_kv = TokenCount{sum * 1000 / group.totals.speed_permille};
  reason.waterline = TokenCount{line};
  const RankIndex::Best best = fewest_running(group, tokens, line);
  reason.fitting = best.winner ? count_fitting(group, tokens, line) : 0;
  if (best.winner) return settle(best, DecodeRule::kFewestBelowLine, reason);
  return settle(least_kv(group, tokens), DecodeRule::kLeastKv, reason);
}

}  // namespace trimtab::policy
