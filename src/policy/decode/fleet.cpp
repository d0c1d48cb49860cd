#include "policy/decode/fleet.h"

#include <algorithm>
#include <tuple>

namespace trimtab::policy {
namespace {

struct Scored {
  std::int64_t first = 0, second = 0;  // divided by speed, in thousandths of a nominal rank
  RankIndex::Pick pick;
  bool operator<(const Scored& other) const {
    return std::tie(first, second, pick.load.rank) <
           std::tie(other.first, other.second, other.pick.load.rank);
  }
};

std::int64_t per_speed(std::int64_t load, std::int64_t speed_permille) {
  // Below 2^31 * 10^6: exact enough to tell any two loads apart, and equal speeds keep their order.
  return load * 1'000'000 / speed_permille;
}

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
      const std::int64_t speed = kind->capacity().speed_permille;
      const Scored scored{per_speed(a, speed), per_speed(b, speed), *pick};
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

}  // namespace trimtab::policy
