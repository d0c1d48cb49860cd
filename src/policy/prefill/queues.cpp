#include "policy/prefill/queues.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {

using base::Nanos;
using model::EngineId;
using model::RequestId;
using model::TierId;

QueueConfig QueueConfig::from(const model::PrefillConfig& config) {
  constexpr std::int64_t kMilli = 1'000'000;
  QueueConfig queue;
  queue.tier_bounds_tokens = config.tier_bounds_tokens;
  for (const std::int64_t cap : config.tier_quota_caps_ms) queue.tier_caps.push_back(Nanos{cap * kMilli});
  queue.step_budget = Nanos{config.step_budget_ms * kMilli};
  queue.outstanding_steps = config.outstanding_steps;
  queue.order = config.order;
  if (config.order_work_percent > 0) {
    queue.order_config.edf_work_percent = config.order_work_percent;
    queue.order_config.arrival_work_percent = config.order_work_percent;
  }
  queue.aging = Nanos{config.aging_ms * kMilli};
  queue.lease = Nanos{config.lease_ms * kMilli};
  queue.help_below_ratio = static_cast<double>(config.help_below_percent) / 100;
  return queue;
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
    : config_(config), map_(std::move(map)), order_(order), tiers_(map_.size()) {}

// Work ------------------------------------------------------------

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
  entry.key = order_->key(entry.item, config_.order_config);
  Tier& tier = tiers_[entry.tier.value];
  tier.by_key.push(entry.key.value, entry.item.id.value, slot);
  if (!order_->key_is_arrival) tier.by_age.push(entry.item.arrival.value, entry.item.id.value, slot);
  tier.quota += entry.item.quota;
  ++queued_;
  if (tier.by_key.top().slot == slot || ages(tier).top().slot == slot) head_changed();
}

void PrefillQueues::extract(std::uint32_t slot) {
  const Entry& entry = entries_[slot];
  Tier& tier = tiers_[entry.tier.value];
  const bool head = tier.by_key.top().slot == slot || ages(tier).top().slot == slot;
  tier.by_key.erase(slot);
  if (!order_->key_is_arrival) tier.by_age.erase(slot);
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

// Engines ------------------------------------------------------------

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

// Leases ------------------------------------------------------------

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

}  // namespace trimtab::policy
