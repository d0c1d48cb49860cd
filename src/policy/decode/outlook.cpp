#include "policy/decode/outlook.h"

#include <algorithm>
#include <limits>

namespace trimtab::policy {
namespace {

constexpr std::int64_t kAnyKv = std::numeric_limits<std::int64_t>::max();

model::RankId id_of(std::uint64_t order) {
  return {model::EngineId{static_cast<std::uint32_t>(order >> 32)}, static_cast<std::uint32_t>(order)};
}

}  // namespace

Expected Outlook::of(std::int64_t age_tokens, std::int64_t tokens) const {
  const std::int64_t survives = survival_.survives(age_tokens);
  return {survives, survives * (tokens + horizon_) / SurvivalTable::kOne};
}

Expected Outlook::of_foreign(std::int64_t running, std::int64_t kv) const {
  const std::int64_t survives = survival_.survives_any();
  return {survives * running, survives * (kv + running * horizon_) / SurvivalTable::kOne};
}

void Outlook::set(std::uint32_t slot, model::RankId rank, Expected expected, std::int64_t room,
                  std::int64_t running, std::int64_t speed_permille) {
  if (slot >= kv_.size()) {
    running_.resize(slot + 1);
    kv_.resize(slot + 1);
    room_.resize(slot + 1, -1);
    speed_.resize(slot + 1, 1000);
    order_.resize(slot + 1);
    count_.resize(slot + 1);
    open_.resize(slot + 1);
    if (!leases_.empty()) leases_.resize(slot + 1, 1);
  }
  if (open_[slot] != 0) {
    total_kv_ -= kv_[slot];
    slow_or_fast_ -= speed_[slot] != 1000 ? 1 : 0;
  }
  open_[slot] = 1;
  running_[slot] = std::max<std::int64_t>(0, expected.running);
  kv_[slot] = std::max<std::int64_t>(0, expected.kv);
  room_[slot] = std::max<std::int64_t>(-1, room);
  speed_[slot] = speed_permille;
  count_[slot] = running;
  order_[slot] = std::uint64_t{rank.engine.value} << 32 | rank.rank;
  total_kv_ += kv_[slot];
  slow_or_fast_ += speed_permille != 1000 ? 1 : 0;
}

void Outlook::remove(std::uint32_t slot) {
  if (slot >= open_.size() || open_[slot] == 0) return;
  total_kv_ -= kv_[slot];
  slow_or_fast_ -= speed_[slot] != 1000 ? 1 : 0;
  open_[slot] = 0;
  room_[slot] = -1;
}

void Outlook::lease(std::int64_t shares, std::int64_t share) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_id;
  for (std::uint32_t slot = 0; slot < open_.size(); ++slot)
    if (open_[slot] != 0) by_id.emplace_back(order_[slot], slot);
  std::sort(by_id.begin(), by_id.end());
  leases_.assign(open_.size(), 0);
  for (std::size_t i = 0; i < by_id.size(); ++i)
    leases_[by_id[i].second] = static_cast<std::int64_t>(i) % shares == share ? 1 : 0;
}

template <class Fits>
Outlook::Best Outlook::scan(std::int64_t tokens, bool by_kv, const Fits& fits) const {
  Best best;
  Key first, second;
  std::uint32_t winner = 0;
  for (std::uint32_t slot = 0; slot < kv_.size(); ++slot) {
    if (!fits(slot)) continue;
    ++best.fitting;
    std::int64_t running = running_[slot], kv = kv_[slot];
    if (slow_or_fast_ != 0) {
      running = (running + SurvivalTable::kOne) * 1000 / speed_[slot];
      kv = (kv + tokens) * 1000 / speed_[slot];
    }
    const Key key = by_kv ? Key{kv, running, order_[slot]} : Key{running, kv, order_[slot]};
    if (!best.winner || key < first) {
      best.runner_up = best.winner;
      second = first;
      best.winner = id_of(key.order);
      winner = slot;
      first = key;
    } else if (!best.runner_up || key < second) {
      best.runner_up = id_of(key.order);
      second = key;
    }
  }
  if (best.winner) best.running = running_[winner];
  return best;
}

Outlook::Best Outlook::scan(std::int64_t tokens, std::int64_t line, bool by_kv) const {
  const auto fits = [&](std::uint32_t slot) {
    if (room_[slot] < tokens) return false;
    if (line == kAnyKv) return true;
    if (slow_or_fast_ == 0) return kv_[slot] + tokens <= line;
    return (kv_[slot] + tokens) * 1000 <= line * speed_[slot];
  };
  if (!leases_.empty()) {
    Best best = scan(tokens, by_kv, [&](std::uint32_t slot) { return leased(slot) && fits(slot); });
    if (best.winner) return best;
  }
  return scan(tokens, by_kv, fits);
}

Outlook::Best Outlook::fewest(std::int64_t tokens, std::int64_t line) const {
  return scan(tokens, line, false);
}

bool Outlook::below(std::uint32_t slot, std::int64_t tokens, const Ceiling& ceiling) const {
  if (room_[slot] < tokens) return false;
  if (slow_or_fast_ == 0)
    return kv_[slot] + tokens <= ceiling.line && count_[slot] < ceiling.running_max(1000);
  return (kv_[slot] + tokens) * 1000 <= ceiling.line * speed_[slot] &&
         count_[slot] < ceiling.running_max(speed_[slot]);
}

Outlook::Best Outlook::fewest_below(std::int64_t tokens, const Ceiling& ceiling) const {
  const auto fits = [&](std::uint32_t slot) { return below(slot, tokens, ceiling); };
  if (!leases_.empty()) {
    Best best = scan(tokens, false, [&](std::uint32_t slot) { return leased(slot) && fits(slot); });
    if (best.winner) return best;
  }
  return scan(tokens, false, fits);
}

bool Outlook::fits_below(std::int64_t tokens, const Ceiling& ceiling) const {
  for (std::uint32_t slot = 0; slot < kv_.size(); ++slot)
    if (below(slot, tokens, ceiling)) return true;
  return false;
}

std::int64_t Outlook::peak_kv() const {
  std::int64_t peak = 0;
  for (std::uint32_t slot = 0; slot < kv_.size(); ++slot)
    if (open_[slot] != 0) peak = std::max(peak, kv_[slot] * 1000 / speed_[slot]);
  return peak;
}

Outlook::Best Outlook::least_kv(std::int64_t tokens) const { return scan(tokens, kAnyKv, true); }

}  // namespace trimtab::policy
