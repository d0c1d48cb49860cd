#include <algorithm>

#include "base/duration_text.h"
#include "policy/prefill/queues.h"

/// The decisions of PrefillQueues: which engine, which request, which rank.
namespace trimtab::policy {

using base::Nanos;

struct PrefillQueues::Pick {
  std::uint32_t entry = 0;
  RankChoice rank;
  bool aged = false;
  bool helped = false;
  std::optional<std::uint32_t> runner_up;  // entry
};

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

std::optional<std::uint32_t> PrefillQueues::aged_entry(Nanos now) const {
  std::optional<IndexedHeap::Top> oldest;
  for (const Tier& tier : tiers_) {
    if (ages(tier).empty()) continue;
    const IndexedHeap::Top top = ages(tier).top();
    if (!oldest || top < *oldest) oldest = top;
  }
  if (!oldest || Nanos{oldest->key} + config_.aging > now) return std::nullopt;
  return oldest->slot;
}

/// The engine with the largest remaining quota that has work to take; sets `helps` when that is a
/// neighbour's.
std::optional<std::uint32_t> PrefillQueues::next_engine(bool aged, bool& helps) const {
  helps = false;
  if (aged) return pulls_.empty() ? std::nullopt : std::optional(pulls_.top().slot);
  std::optional<IndexedHeap::Top> best;
  for (const Tier& tier : tiers_) {
    if (tier.by_key.empty() || tier.pulls.empty()) continue;
    const IndexedHeap::Top top = tier.pulls.top();
    if (!best || top < *best) best = top;
  }
  if (best) return best->slot;
  for (std::uint32_t t = 0; t < tiers_.size() && config_.help_below_ratio > 0; ++t) {
    if (tiers_[t].by_key.empty()) continue;
    for (const std::uint32_t neighbour : {t + 1, t - 1}) {  // t - 1 of 0 wraps to no tier
      if (neighbour >= tiers_.size() || tiers_[neighbour].pulls.empty()) continue;
      const IndexedHeap::Top top = tiers_[neighbour].pulls.top();
      const double capacity = static_cast<double>(engines_[top.slot].ranks.size()) *
                              static_cast<double>(config_.outstanding_steps) *
                              static_cast<double>(config_.step_budget.value);
      const bool idle_enough = static_cast<double>(-top.key) > (1 - config_.help_below_ratio) * capacity;
      if (idle_enough && (!best || top < *best)) best = top;
    }
  }
  helps = best.has_value();
  return helps ? std::optional(best->slot) : std::nullopt;
}

/// What this engine takes now: none when no rank has the memory.
std::optional<PrefillQueues::Pick> PrefillQueues::pick(std::uint32_t slot, std::optional<std::uint32_t> aged,
                                                       bool helps) const {
  const Engine& engine = engines_[slot];
  const auto fit = [&](std::uint32_t entry) {
    return least_loaded_rank(engine.ranks, entries_[entry].item.blocks);
  };
  // The heads of the engine's tiers, by key; one that helps has no work in its own tiers and looks one
  // further on either side. Few tiers: the least and the next are found by looking at all.
  const auto tiers = static_cast<std::uint32_t>(tiers_.size());
  const std::uint32_t from = engine.range.first.value - (helps && engine.range.first.value > 0 ? 1 : 0);
  const std::uint32_t to = std::min(engine.range.last.value + (helps ? 1 : 0), tiers - 1);
  std::uint32_t tried = 0;
  const auto next_head = [&]() {
    std::optional<IndexedHeap::Top> least;
    std::uint32_t least_tier = 0;
    for (std::uint32_t t = from; t <= to; ++t) {
      if ((tried >> t & 1U) != 0 || tiers_[t].by_key.empty()) continue;
      const IndexedHeap::Top top = tiers_[t].by_key.top();
      if (!least || top < *least) {
        least = top;
        least_tier = t;
      }
    }
    if (!least) return std::optional<std::uint32_t>();
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
    if (const auto rank = fit(*head)) return Pick{*head, *rank, false, helps, next_head()};
  }
  return std::nullopt;
}

std::optional<Grant> PrefillQueues::serve(Nanos now) {
  while (queued_ > 0) {
    const auto aged = aged_entry(now);
    if (aged != aged_before_) {
      aged_before_ = aged;
      head_changed();
    }
    bool helps = false;
    const auto engine = next_engine(aged.has_value(), helps);
    if (!engine) return std::nullopt;
    const auto picked = pick(*engine, aged, helps);
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
  const auto rank_text = [&grant](std::uint32_t rank, const char* words) {
    return "rank " + std::to_string(rank) + words + "(" + base::duration_text(grant.ranks_left[rank]) + ")";
  };
  std::string reason = "pulled by prefill engine " + std::to_string(grant.engine.value) + " with " +
                       base::duration_text(grant.engine_left) + " of quota left; " +
                       rank_text(grant.rank, " has most of it ");
  if (grant.rank_runner_up) reason += ", then " + rank_text(*grant.rank_runner_up, " ");
  reason += "; waited " + base::duration_text(grant.queue_time) +
            (grant.aged ? ", aged: first whatever its key, in tier " : ", smallest key of tier ") +
            std::to_string(grant.tier.value);
  if (grant.helped) reason += ", helped out by a neighbouring tier's engine";
  if (grant.request_runner_up) reason += ", before request " + std::to_string(grant.request_runner_up->value);
  return reason;
}

}  // namespace trimtab::policy
