#include "policy/prefill/queues.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace trimtab::policy {

using base::Nanos;
using model::EngineId;
using model::RequestId;
using model::TierId;

struct PrefillQueues::Pick {
  std::uint32_t entry = 0;
  RankChoice rank;
  bool aged = false;
  bool helped = false;
  std::optional<std::uint32_t> runner_up;  // entry
};

QueueConfig QueueConfig::from(const model::PrefillConfig& config) {
  constexpr std::int64_t kMilli = 1'000'000;
  QueueConfig queue;
  queue.tier_bounds_tokens = config.tier_bounds_tokens;
  for (const std::int64_t cap : config.tier_quota_caps_ms) queue.tier_caps.push_back(Nanos{cap * kMilli});
  queue.step_budget = Nanos{config.step_budget_ms * kMilli};
  queue.outstanding_steps = config.outstanding_steps;
  queue.order = config.order;
  queue.aging = Nanos{config.aging_ms * kMilli};
  queue.lease = Nanos{config.lease_ms * kMilli};
  return queue;
}

std::optional<RankChoice> least_loaded_rank(std::span<const RankOffer> ranks, std::int64_t blocks) {
  std::optional<RankChoice> choice;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].quota_left <= Nanos{0} || ranks[rank].blocks_free < blocks) continue;
    if (!choice) {
      choice = RankChoice{rank, std::nullopt};
    } else if (ranks[rank].quota_left > ranks[choice->rank].quota_left) {
      choice = RankChoice{rank, choice->rank};
    } else if (!choice->runner_up || ranks[rank].quota_left > ranks[*choice->runner_up].quota_left) {
      choice->runner_up = rank;
    }
  }
  return choice;
}

base::Result<PrefillQueues> PrefillQueues::make(const QueueConfig& config) {
  auto map = TierMap::make(config.tier_bounds_tokens);
  if (!map) return tl::unexpected<base::Error>(std::move(map).error());
  const auto order = find_queue_order(config.order);
  if (!order) return tl::unexpected<base::Error>(order.error());
  const bool caps_good =
      std::all_of(config.tier_caps.begin(), config.tier_caps.end(), [](Nanos cap) { return cap > Nanos{0}; });
  if (!caps_good || config.tier_caps.size() > map->size()) {
    return base::fail(
        base::Code::kInvalidArgument,
        "tier caps must be positive and at most one per tier (" + std::to_string(map->size()) + " tiers)",
        "prefill");
  }
  if (config.step_budget <= Nanos{0} || config.outstanding_steps < 1 || config.aging <= Nanos{0} ||
      config.lease <= Nanos{0}) {
    return base::fail(base::Code::kInvalidArgument,
                      "step budget, outstanding steps, aging and lease must be positive", "prefill");
  }
  return PrefillQueues(config, std::move(*map), *order);
}

PrefillQueues::PrefillQueues(const QueueConfig& config, TierMap map, const QueueOrder* order)
    : config_(config), map_(std::move(map)), order_(order), tiers_(map_.size()) {
  // Then the key is the age, and one heap does for both.
  key_is_age_ = order->name == "fifo";
}

// Work
// ---------------------------------------------------------------------------------------------------------------

EnqueueDecision PrefillQueues::enqueue(const QueueItem& item) {
  TRIMTAB_CHECK(item.quota >= Nanos{0} && item.blocks >= 0);
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  const bool fresh = slots_.emplace(item.id, slot).second;
  TRIMTAB_CHECK(fresh, "request " + std::to_string(item.id.value) + " is here already");
  entries_[slot].item = item;
  insert(slot);
  Tier& tier = tiers_[entries_[slot].tier.value];
  tier.arrived += item.quota;
  return {entries_[slot].tier, entries_[slot].key, tier.by_key.size(), tier.quota};
}

bool PrefillQueues::update(const QueueItem& item) {
  const auto found = slots_.find(item.id);
  if (found == slots_.end() || entries_[found->second].state != Entry::State::kQueued) return false;
  Entry& entry = entries_[found->second];
  const TierId before = entry.tier;
  const Nanos arrival = entry.item.arrival;
  extract(found->second);
  entry.item = item;
  entry.item.arrival = arrival;
  insert(found->second);
  if (entry.tier != before) tiers_[entry.tier.value].arrived += item.quota;
  return true;
}

bool PrefillQueues::remove(RequestId id) {
  const auto found = slots_.find(id);
  if (found == slots_.end()) return false;
  const std::uint32_t slot = found->second;
  if (entries_[slot].state == Entry::State::kQueued) {
    extract(slot);
  } else {
    leases_.erase(slot);
  }
  entries_[slot].state = Entry::State::kFree;
  free_.push_back(slot);
  slots_.erase(found);
  return true;
}

/// `entries_[slot].item` is set; the rest follows from it.
void PrefillQueues::insert(std::uint32_t slot) {
  Entry& entry = entries_[slot];
  entry.state = Entry::State::kQueued;
  entry.tier = map_.tier_of(entry.item.context);
  entry.key = order_->key(entry.item, entry.tier, config_.order_config);
  Tier& tier = tiers_[entry.tier.value];
  tier.by_key.push(entry.key.value, entry.item.id.value, slot);
  if (!key_is_age_) tier.by_age.push(entry.item.arrival.value, entry.item.id.value, slot);
  tier.quota += entry.item.quota;
  ++queued_;
  if (tier.by_key.top().slot == slot || ages(tier).top().slot == slot) head_changed();
}

void PrefillQueues::extract(std::uint32_t slot) {
  const Entry& entry = entries_[slot];
  Tier& tier = tiers_[entry.tier.value];
  const bool head = tier.by_key.top().slot == slot || ages(tier).top().slot == slot;
  tier.by_key.erase(slot);
  if (!key_is_age_) tier.by_age.erase(slot);
  tier.quota -= entry.item.quota;
  --queued_;
  if (head) head_changed();
}

/// Engines that had no memory for the heads they saw look again.
void PrefillQueues::head_changed() {
  for (const std::uint32_t engine : held_) {
    engines_[engine].held = false;
    open(engine);
  }
  held_.clear();
}

Nanos PrefillQueues::queued_quota() const {
  Nanos sum{0};
  for (const Tier& tier : tiers_) sum += tier.quota;
  return sum;
}

std::vector<Nanos> PrefillQueues::close_round() {
  std::vector<Nanos> demand;
  for (Tier& tier : tiers_) {
    demand.push_back(tier.carried + tier.arrived);
    tier.carried = tier.quota;
    tier.arrived = Nanos{0};
  }
  return demand;
}

// Engines
// ------------------------------------------------------------------------------------------------------------

void PrefillQueues::set_engines(std::span<const EngineTiers> engines) {
  for (std::uint32_t slot = 0; slot < engines_.size(); ++slot) {
    close(slot);
    engines_[slot].in_service = false;
  }
  for (const EngineTiers& each : engines) {
    TRIMTAB_CHECK(each.range.first <= each.range.last && each.range.last.value < tiers_.size());
    const auto [found, fresh] =
        engine_slots_.emplace(each.engine, static_cast<std::uint32_t>(engines_.size()));
    if (fresh) engines_.emplace_back().id = each.engine;
    Engine& engine = engines_[found->second];
    engine.range = each.range;
    engine.in_service = true;
    open(found->second);
  }
  // Whoever left service leaves its offer behind too.
  for (Engine& engine : engines_) {
    if (!engine.in_service) engine.ranks.clear();
  }
}

/// Puts the offer in the heaps of its tiers, if there is one and the engine is in service.
void PrefillQueues::open(std::uint32_t slot) {
  Engine& engine = engines_[slot];
  engine.left = Nanos{0};
  for (const RankOffer& rank : engine.ranks) engine.left += std::max(rank.quota_left, Nanos{0});
  if (engine.open || !engine.in_service || engine.left <= Nanos{0}) return;
  for (std::uint32_t t = engine.range.first.value; t <= engine.range.last.value; ++t) {
    tiers_[t].pulls.push(-engine.left.value, engine.id.value, slot);
  }
  pulls_.push(-engine.left.value, engine.id.value, slot);
  engine.open = true;
}

/// Takes the offer out of the heaps, and off the list of those held.
void PrefillQueues::close(std::uint32_t slot) {
  Engine& engine = engines_[slot];
  if (engine.held) {
    engine.held = false;
    std::erase(held_, slot);
  }
  if (!engine.open) return;
  for (std::uint32_t t = engine.range.first.value; t <= engine.range.last.value; ++t)
    tiers_[t].pulls.erase(slot);
  pulls_.erase(slot);
  engine.open = false;
}

void PrefillQueues::pull(EngineId id, std::span<const RankOffer> ranks) {
  const auto found = engine_slots_.find(id);
  if (found == engine_slots_.end() || !engines_[found->second].in_service) return;
  close(found->second);
  engines_[found->second].ranks.assign(ranks.begin(), ranks.end());
  open(found->second);
}

void PrefillQueues::withdraw(EngineId id) { pull(id, {}); }

// Leases
// -------------------------------------------------------------------------------------------------------------

bool PrefillQueues::renew(RequestId id, Nanos now) {
  const auto found = slots_.find(id);
  if (found == slots_.end() || entries_[found->second].state != Entry::State::kLeased) return false;
  leases_.erase(found->second);
  leases_.push((now + config_.lease).value, id.value, found->second);
  return true;
}

Returned PrefillQueues::give_back(std::uint32_t slot) {
  Returned returned{entries_[slot].item, entries_[slot].engine};
  leases_.erase(slot);
  insert(slot);
  return returned;
}

std::vector<Returned> PrefillQueues::expire(Nanos now) {
  std::vector<Returned> returned;
  while (!leases_.empty() && leases_.top().key <= now.value)
    returned.push_back(give_back(leases_.top().slot));
  return returned;
}

std::vector<Returned> PrefillQueues::lose_engine(EngineId id) {
  withdraw(id);
  std::vector<Returned> returned;
  for (std::uint32_t slot = 0; slot < entries_.size(); ++slot) {
    if (entries_[slot].state == Entry::State::kLeased && entries_[slot].engine == id)
      returned.push_back(give_back(slot));
  }
  std::sort(returned.begin(), returned.end(),
            [](const Returned& a, const Returned& b) { return a.item.id < b.item.id; });
  return returned;
}

Nanos PrefillQueues::next_event(Nanos now) const {
  Nanos next = base::kForever;
  if (!leases_.empty()) next = std::max(now, Nanos{leases_.top().key});
  for (const Tier& tier : tiers_) {
    if (ages(tier).empty()) continue;
    const Nanos ages_at = Nanos{ages(tier).top().key} + config_.aging;
    if (ages_at > now) next = std::min(next, ages_at);
  }
  return next;
}

// Pairing
// ------------------------------------------------------------------------------------------------------------

std::optional<std::uint32_t> PrefillQueues::aged_entry(Nanos now) const {
  const IndexedHeap::Entry* oldest = nullptr;
  for (const Tier& tier : tiers_) {
    if (ages(tier).empty()) continue;
    const IndexedHeap::Entry& top = ages(tier).top();
    if (oldest == nullptr || top < *oldest) oldest = &top;
  }
  if (oldest == nullptr || Nanos{oldest->key} + config_.aging > now) return std::nullopt;
  return oldest->slot;
}

/// The engine with the largest remaining quota that has work to take; sets `helped_tier` when that is a
/// neighbour's.
std::optional<std::uint32_t> PrefillQueues::next_engine(bool aged,
                                                        std::optional<std::uint32_t>& helped_tier) const {
  helped_tier.reset();
  if (aged) return pulls_.empty() ? std::nullopt : std::optional(pulls_.top().slot);
  const IndexedHeap::Entry* best = nullptr;
  for (const Tier& tier : tiers_) {
    if (tier.by_key.empty() || tier.pulls.empty()) continue;
    if (best == nullptr || tier.pulls.top() < *best) best = &tier.pulls.top();
  }
  if (best != nullptr) return best->slot;
  for (std::uint32_t t = 0; t < tiers_.size() && config_.help_below_ratio > 0; ++t) {
    if (tiers_[t].by_key.empty()) continue;
    for (const std::uint32_t neighbour : {t + 1, t - 1}) {  // t - 1 of 0 wraps to no tier
      if (neighbour >= tiers_.size() || tiers_[neighbour].pulls.empty()) continue;
      const IndexedHeap::Entry& top = tiers_[neighbour].pulls.top();
      const double capacity = static_cast<double>(engines_[top.slot].ranks.size()) *
                              static_cast<double>(config_.outstanding_steps) *
                              static_cast<double>(config_.step_budget.value);
      const bool idle_enough = static_cast<double>(-top.key) > (1 - config_.help_below_ratio) * capacity;
      if (idle_enough && (best == nullptr || top < *best)) {
        best = &top;
        helped_tier = t;
      }
    }
  }
  return best == nullptr ? std::nullopt : std::optional(best->slot);
}

/// What this engine takes now: none when no rank has the memory.
std::optional<PrefillQueues::Pick> PrefillQueues::pick(std::uint32_t slot, std::optional<std::uint32_t> aged,
                                                       std::optional<std::uint32_t> helped_tier) const {
  const Engine& engine = engines_[slot];
  const auto fit = [&](std::uint32_t entry) {
    return least_loaded_rank(engine.ranks, entries_[entry].item.blocks);
  };
  if (helped_tier) {
    const std::uint32_t head = tiers_[*helped_tier].by_key.top().slot;
    const auto rank = fit(head);
    return rank ? std::optional(Pick{head, *rank, false, true, std::nullopt}) : std::nullopt;
  }
  // The heads of the engine's tiers, by key. Few tiers: the least and the next are found by looking at all.
  std::uint32_t tried = 0;
  const auto next_head = [&]() {
    const IndexedHeap::Entry* least = nullptr;
    std::uint32_t least_tier = 0;
    for (std::uint32_t t = engine.range.first.value; t <= engine.range.last.value; ++t) {
      if ((tried >> t & 1U) != 0 || tiers_[t].by_key.empty()) continue;
      if (least == nullptr || tiers_[t].by_key.top() < *least) {
        least = &tiers_[t].by_key.top();
        least_tier = t;
      }
    }
    if (least == nullptr) return std::optional<std::uint32_t>();
    tried |= 1U << least_tier;
    return std::optional(least->slot);
  };
  if (aged) {
    if (const auto rank = fit(*aged)) {
      auto runner_up = next_head();
      if (runner_up == aged) runner_up = next_head();
      const bool outside = !engine.range.contains(entries_[*aged].tier);
      return Pick{*aged, *rank, true, outside, runner_up};
    }
    // Memory drains here until it fits; engines of other tiers go on with their own.
    if (engine.range.contains(entries_[*aged].tier)) return std::nullopt;
  }
  while (const auto head = next_head()) {
    if (const auto rank = fit(*head)) return Pick{*head, *rank, false, false, next_head()};
  }
  return std::nullopt;
}

std::optional<Grant> PrefillQueues::serve(Nanos now) {
  while (queued_ > 0) {
    const auto aged = aged_entry(now);
    std::optional<std::uint32_t> helped_tier;
    const auto engine = next_engine(aged.has_value(), helped_tier);
    if (!engine) return std::nullopt;
    const auto picked = pick(*engine, aged, helped_tier);
    if (picked) return grant(*picked, *engine, now);
    close(*engine);
    engines_[*engine].held = true;
    held_.push_back(*engine);
  }
  return std::nullopt;
}

Nanos PrefillQueues::cap_of(std::uint32_t tier) const {
  return tier < config_.tier_caps.size() ? config_.tier_caps[tier] : config_.step_budget;
}

Grant PrefillQueues::grant(const Pick& picked, std::uint32_t engine_slot, Nanos now) {
  Entry& entry = entries_[picked.entry];
  Engine& engine = engines_[engine_slot];
  Grant grant;
  grant.item = entry.item;
  grant.tier = entry.tier;
  grant.engine = engine.id;
  grant.rank = picked.rank.rank;
  grant.rank_runner_up = picked.rank.runner_up;
  if (picked.runner_up) grant.request_runner_up = entries_[*picked.runner_up].item.id;
  grant.aged = picked.aged;
  grant.helped = picked.helped;
  grant.key = entry.key;
  grant.queue_time = now - entry.item.arrival;
  grant.engine_left = engine.left;
  grant.ranks_left.reserve(engine.ranks.size());
  for (const RankOffer& rank : engine.ranks) grant.ranks_left.push_back(rank.quota_left);
  grant.batch_cap = cap_of(std::max(engine.range.cap, entry.tier).value);
  grant.lease_until = now + config_.lease;

  // The offer first: taking the head out reopens held engines, never this one.
  close(engine_slot);
  engine.ranks[grant.rank].quota_left -= entry.item.quota;
  engine.ranks[grant.rank].blocks_free -= entry.item.blocks;
  open(engine_slot);
  extract(picked.entry);
  entry.state = Entry::State::kLeased;
  entry.engine = engine.id;
  leases_.push(grant.lease_until.value, entry.item.id.value, picked.entry);
  return grant;
}

std::string to_string(const Grant& grant) {
  char text[320];
  std::snprintf(text, sizeof text, "engine %u pulled with %.1f ms left; rank %u had most left (%.1f ms)",
                grant.engine.value, base::to_millis(grant.engine_left), grant.rank,
                base::to_millis(grant.ranks_left[grant.rank]));
  std::string reason = text;
  if (grant.rank_runner_up) {
    std::snprintf(text, sizeof text, ", then rank %u (%.1f ms)", *grant.rank_runner_up,
                  base::to_millis(grant.ranks_left[*grant.rank_runner_up]));
    reason += text;
  }
  std::snprintf(text, sizeof text, "; tier %u, quota %.1f ms, waited %.1f ms%s%s", grant.tier.value,
                base::to_millis(grant.item.quota), base::to_millis(grant.queue_time),
                grant.aged ? ", aged: first whatever its key" : ", smallest key",
                grant.helped ? ", a neighbouring tier's engine helped" : "");
  reason += text;
  if (grant.request_runner_up) reason += "; before request " + std::to_string(grant.request_runner_up->value);
  return reason;
}

}  // namespace trimtab::policy
