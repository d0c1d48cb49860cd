#include "policy/decode/migrator.h"

#include <algorithm>
#include <optional>

namespace trimtab::policy {
namespace {

constexpr std::int64_t kBurst = 8;   // moves that may be saved up
constexpr std::size_t kTargets = 6;  // ranks of least potential that are tried
constexpr double kCost = 0.002;      // of an ideal step and rank: what a move must save

}  // namespace

struct Migrator::Rank {
  RankId id;
  DecodeLoad load;
  double speed = 1, potential = 0;
  std::int64_t room = 0;  // the longest request that fits beside the others, headroom kept
};

struct Migrator::Choice {
  double gain = 0, before = 0, after = 0;
  const Rank* to = nullptr;
  DecodeLedger::Request leaves;
  std::optional<DecodeLedger::Request> comes;
};

void Migrator::placed() {
  budget_permille_ = std::min(kBurst * 1000, budget_permille_ + config_.moves_permille);
}

void Migrator::moved(RequestId id, TokenCount tokens, Nanos now) {
  budget_permille_ -= 1000;
  tokens_left_ -= tokens.value;
  moves_.emplace_back(now, id);
  moved_at_[id] = now;
}

bool Migrator::rests(RequestId id, Nanos now) const {
  const auto found = moved_at_.find(id);
  return found != moved_at_.end() && now - found->second < config_.move_rest;
}

void Migrator::refill(Nanos now) {
  while (!moves_.empty() && now - moves_.front().first >= config_.move_rest) {
    const auto [at, id] = moves_.front();
    moves_.pop_front();
    const auto found = moved_at_.find(id);
    if (found != moved_at_.end() && found->second == at) moved_at_.erase(found);
  }
  if (config_.move_tokens_per_s == 0) return;
  const std::int64_t most = config_.move_tokens_per_s;  // a second's worth may be saved up
  if (refilled_at_.value == INT64_MIN) {
    tokens_left_ = most;
  } else {
    const std::int64_t span_us = std::clamp<std::int64_t>((now - refilled_at_).value / 1000, 0, 1'000'000);
    tokens_left_ = std::min(most, tokens_left_ + most / 1000 * span_us / 1000);
  }
  refilled_at_ = now;
}

void Migrator::look_at(const Rank& from, const Rank& to, const std::vector<DecodeLedger::Request>& leaving,
                       const std::vector<DecodeLedger::Request>& coming, const Potential& potential,
                       Nanos now, Choice& best) const {
  const auto running_a = static_cast<double>(from.load.running),
             kv_a = static_cast<double>(from.load.kv.value);
  const auto running_b = static_cast<double>(to.load.running), kv_b = static_cast<double>(to.load.kv.value);
  const double before = from.potential + to.potential;
  const double running_moved =
      potential.running_part(running_a - 1, from.speed) + potential.running_part(running_b + 1, to.speed);
  const double running_same =
      potential.running_part(running_a, from.speed) + potential.running_part(running_b, to.speed);
  const auto offer = [&](double gain, double after, const DecodeLedger::Request& leaves,
                         const DecodeLedger::Request* comes) {
    if (gain <= best.gain) return;
    best.gain = gain;
    best.before = before;
    best.after = after;
    best.to = &to;
    best.leaves = leaves;
    best.comes = comes == nullptr ? std::nullopt : std::optional(*comes);
  };
  const bool pays_tokens = config_.move_tokens_per_s > 0;
  for (const DecodeLedger::Request& request : leaving) {
    if (!request.running || rests(request.id, now)) continue;
    if (pays_tokens && request.tokens.value > tokens_left_) continue;
    const auto tokens = static_cast<double>(request.tokens.value);
    if (request.tokens.value <= to.room) {
      const double after = running_moved + potential.kv_part(kv_a - tokens, from.speed) +
                           potential.kv_part(kv_b + tokens, to.speed);
      offer(before - after, after, request, nullptr);
    }
    if (budget_permille_ < 2000) continue;
    for (const DecodeLedger::Request& other : coming) {
      if (!other.running || other.tokens >= request.tokens || rests(other.id, now)) continue;
      if (pays_tokens && request.tokens.value + other.tokens.value > tokens_left_) continue;
      const std::int64_t shift = request.tokens.value - other.tokens.value;
      if (request.tokens.value > to.room || other.tokens.value > from.room) continue;
      const double after = running_same + potential.kv_part(kv_a - static_cast<double>(shift), from.speed) +
                           potential.kv_part(kv_b + static_cast<double>(shift), to.speed);
      offer((before - after) / 2, after, request, &other);
    }
  }
}

std::vector<DecodeMove> Migrator::plan(const DecodeLedger& ledger, Nanos now) {
  if (config_.moves_permille == 0) return {};
  refill(now);
  if (budget_permille_ < 1000 || ledger.open_ranks().size() < 2 || ledger.totals().running == 0) return {};
  if (planned_at_.value != INT64_MIN && now - planned_at_ < config_.move_interval) return {};
  planned_at_ = now;

  Potential potential;
  const double speeds = static_cast<double>(ledger.totals().speed_permille) / 1000;
  potential.mean_kv = std::max(1.0, static_cast<double>(ledger.totals().kv) / speeds);
  potential.mean_running = static_cast<double>(ledger.totals().running) / speeds;
  std::vector<Rank> ranks;
  for (const RankId id : ledger.open_ranks()) {
    Rank rank{id, ledger.load(id), 1, 0, 0};
    const DecodeCapacity& capacity = ledger.capacity(id);
    rank.speed = static_cast<double>(capacity.speed_permille) / 1000;
    rank.potential = potential.of(static_cast<double>(rank.load.running),
                                  static_cast<double>(rank.load.kv.value), rank.speed);
    const bool full = rank.load.running >= capacity.max_running;
    rank.room =
        full ? -1
             : capacity.kv.value - rank.load.kv.value - config_.headroom_tokens * (rank.load.running + 1);
    ranks.push_back(rank);
  }
  // Ranks stand in the order of their ids, and the sort is stable: ties go to the smaller id.
  const auto worst = std::max_element(ranks.begin(), ranks.end(),
                                      [](const Rank& a, const Rank& b) { return a.potential < b.potential; });
  const Rank from = *worst;
  ranks.erase(worst);
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const Rank& a, const Rank& b) { return a.potential < b.potential; });
  ranks.resize(std::min(ranks.size(), kTargets));

  const auto by_id = [](const auto& a, const auto& b) { return a.id < b.id; };
  std::vector<DecodeLedger::Request> leaving = ledger.requests(from.id);
  std::sort(leaving.begin(), leaving.end(), by_id);
  Choice best;
  for (const Rank& to : ranks) {
    std::vector<DecodeLedger::Request> coming = ledger.requests(to.id);
    std::sort(coming.begin(), coming.end(), by_id);
    look_at(from, to, leaving, coming, potential, now, best);
  }
  if (best.to == nullptr || best.gain <= kCost) return {};
  DecodeMove move{best.leaves.id,
                  from.id,
                  best.to->id,
                  best.leaves.tokens,
                  best.comes.has_value(),
                  from.load,
                  best.to->load,
                  best.before,
                  best.after,
                  kCost,
                  budget_permille_ - 1000};
  std::vector<DecodeMove> moves{move};
  if (best.comes) {
    DecodeMove back = move;
    back.id = best.comes->id;
    back.from = move.to;
    back.to = move.from;
    back.tokens = best.comes->tokens;
    back.swaps_with_next = false;
    std::swap(back.from_load, back.to_load);
    back.budget_left_permille -= 1000;
    moves.push_back(back);
  }
  return moves;
}

}  // namespace trimtab::policy
