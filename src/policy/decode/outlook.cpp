#include "policy/decode/outlook.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace trimtab::policy {
namespace {

constexpr std::int64_t kAny = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kFraction = 4'096;  // parts of a request that the sweeps tell apart

std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, -1, kAny - 1));
}

}  // namespace

Expected Outlook::of(std::int64_t age_tokens, std::int64_t tokens) const {
  const std::int64_t survives = survival_.survives(age_tokens);
  return {survives, survives * (tokens + survival_.horizon_tokens()) / SurvivalTable::kOne};
}

Expected Outlook::of_foreign(std::int64_t running, std::int64_t kv) const {
  const std::int64_t survives = survival_.survives_any();
  return {survives * running, survives * (kv + running * survival_.horizon_tokens()) / SurvivalTable::kOne};
}

void Outlook::set(model::RankId rank, const State& state) {
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), rank);
  const auto at = static_cast<std::size_t>(found - ids_.begin());
  if (found == ids_.end() || *found != rank) {
    ids_.insert(found, rank);
    open_.insert(open_.begin() + static_cast<std::ptrdiff_t>(at), 0);
    leased_.insert(leased_.begin() + static_cast<std::ptrdiff_t>(at), 1);
    kv_now_.insert(kv_now_.begin() + static_cast<std::ptrdiff_t>(at), 0);
    ranks_.insert(at);
  }
  if (open_[at] != 0 && ranks_.speed_permille[at] == state.speed_permille) {
    total_kv_ -= ranks_.kv[at];  // the usual case: a token came
  } else {
    leave(at);
    speeds_[narrow(state.speed_permille)] += 1;
  }
  open_[at] = 1;
  ranks_.running[at] = narrow(state.expected.running * kFraction / SurvivalTable::kOne);
  ranks_.kv[at] = narrow(std::max<std::int64_t>(0, state.expected.kv));
  ranks_.running[at] = std::max(0, ranks_.running[at]);
  ranks_.room[at] = narrow(state.room);
  ranks_.leased_room[at] = leased_[at] != 0 ? ranks_.room[at] : -1;
  ranks_.count[at] = narrow(state.running);
  kv_now_[at] = state.kv;
  ranks_.speed_permille[at] = narrow(state.speed_permille);
  total_kv_ += ranks_.kv[at];
}

/// What the rank adds to the sums, if it is open.
void Outlook::leave(std::size_t at) {
  if (open_[at] == 0) return;
  open_[at] = 0;
  total_kv_ -= ranks_.kv[at];
  const auto speed = speeds_.find(ranks_.speed_permille[at]);
  if (--speed->second == 0) speeds_.erase(speed);
}

void Outlook::remove(model::RankId rank) {
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), rank);
  if (found == ids_.end() || *found != rank) return;
  const auto at = static_cast<std::size_t>(found - ids_.begin());
  leave(at);
  ids_.erase(found);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
  leased_.erase(leased_.begin() + static_cast<std::ptrdiff_t>(at));
  kv_now_.erase(kv_now_.begin() + static_cast<std::ptrdiff_t>(at));
  ranks_.erase(at);
}

void Outlook::lease(std::int64_t shares, std::int64_t share) {
  TRIMTAB_CHECK(shares > 0 && share >= 0 && share < shares, "share of the ranks");
  leases_ = true;
  for (std::size_t at = 0; at < ids_.size(); ++at) {
    leased_[at] = static_cast<std::int64_t>(at) % shares == share ? 1 : 0;
    ranks_.leased_room[at] = leased_[at] != 0 ? ranks_.room[at] : -1;
  }
}

/// A rank and its loads, compared per unit of speed, exactly: products instead of quotients.
struct Outlook::Candidate {
  std::size_t at = 0;
  std::int64_t first = 0, second = 0, speed = 1000;
  bool operator<(const Candidate& other) const {
    if (first * other.speed != other.first * speed) return first * other.speed < other.first * speed;
    if (second * other.speed != other.second * speed) return second * other.speed < other.second * speed;
    return at < other.at;
  }
};

Outlook::Best Outlook::best_of(std::int64_t tokens, const Limits& limits, bool leased) const {
  Best best;
  if (tokens >= kAny) return best;
  std::optional<Candidate> first, second;
  for (const auto& [speed, ranks] : speeds_) {
    DenseQuery query;
    query.speed_permille = speed;
    query.tokens = static_cast<std::int32_t>(tokens);
    const std::int64_t kv_max = limits.line >= kAny * 1'000 ? kAny - 1 : limits.line * speed / 1000 - tokens;
    query.kv_max = narrow(kv_max);
    query.count_max = limits.ceiling == nullptr ? narrow(kAny) : narrow(limits.ceiling->running_max(speed));
    query.by_kv = limits.by_kv;
    query.leased = leased;
    query.plain = limits.ceiling == nullptr && speeds_.size() == 1;
    const DenseBest found = scan(ranks_, query);
    best.fitting += found.fitting;
    for (const std::int32_t position : {found.first, found.second}) {
      if (position < 0) continue;
      const auto at = static_cast<std::size_t>(position);
      const std::int64_t running = ranks_.running[at] + kFraction, kv = ranks_.kv[at] + tokens;
      const Candidate candidate{at, limits.by_kv ? kv : running, limits.by_kv ? running : kv, speed};
      if (!first || candidate < *first) {
        second = first;
        first = candidate;
      } else if (!second || candidate < *second) {
        second = candidate;
      }
    }
  }
  if (first) {
    best.winner = pick(first->at);
    best.running_permille = std::int64_t{ranks_.running[first->at]} * 1000 / kFraction;
  }
  if (second) best.runner_up = pick(second->at);
  return best;
}

Outlook::Best Outlook::best_of(std::int64_t tokens, const Limits& limits) const {
  if (leases_) {
    Best best = best_of(tokens, limits, true);
    if (best.winner) return best;
  }
  return best_of(tokens, limits, false);
}

Outlook::Best Outlook::fewest(std::int64_t tokens, std::int64_t line) const {
  return best_of(tokens, {line, nullptr, false});
}

Outlook::Best Outlook::fewest_below(std::int64_t tokens, const Ceiling& ceiling) const {
  return best_of(tokens, {ceiling.line, &ceiling, false});
}

Outlook::Best Outlook::least_kv(std::int64_t tokens) const {
  return best_of(tokens, {kAny * 1'000, nullptr, true});
}

std::int64_t Outlook::Ceiling::running_max(std::int64_t speed_permille) const {
  const std::int64_t even = (running_permille * speed_permille + 999'999) / 1'000'000;
  return (even + graph_step - 1) / graph_step * graph_step;
}

std::int64_t Outlook::peak_kv() const {
  std::int64_t peak = 0;
  for (const auto& [speed, ranks] : speeds_)
    peak = std::max(peak, std::int64_t{policy::peak_kv(ranks_, speed)} * 1000 / speed);
  return peak;
}

}  // namespace trimtab::policy
