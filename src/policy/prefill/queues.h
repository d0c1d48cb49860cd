#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/cluster_config.h"
#include "model/ids.h"
#include "policy/prefill/indexed_heap.h"
#include "policy/prefill/orders.h"
#include "policy/prefill/tiers.h"

namespace trimtab::policy {

struct QueueConfig {
  std::vector<std::int64_t> tier_bounds_tokens = {16'384, 65'536, 262'144};
  std::vector<base::Nanos> tier_caps;  // of one batch's quota, per tier; missing ones: the step budget
  base::Nanos step_budget{300'000'000};
  std::int64_t outstanding_steps =
      2;  // budgets per rank that an engine fills up to; says what "much quota left" is
  std::string order = "fifo";
  OrderConfig order_config;
  base::Nanos aging{30'000'000'000};
  base::Nanos lease{30'000'000'000};
  /// An engine filled below this share of its capacity may serve a neighbouring tier when its own tiers have
  /// no work. 0: never.
  double help_below_ratio = 0.5;

  static QueueConfig from(const model::PrefillConfig& config);
};

/// What one rank of a pulling engine can still take.
struct RankOffer {
  base::Nanos quota_left;
  std::int64_t blocks_free = INT64_MAX;
};

/// The rank that takes a request: most quota left (least load) among those with quota and blocks left, ties
/// by rank.
struct RankChoice {
  std::uint32_t rank = 0;
  std::optional<std::uint32_t> runner_up;
};
std::optional<RankChoice> least_loaded_rank(std::span<const RankOffer> ranks, std::int64_t blocks);

struct EnqueueDecision {
  model::TierId tier;
  base::Nanos key;           // of its order; smallest first
  std::size_t depth = 0;     // of the tier's queue, with it
  base::Nanos queued_quota;  // of the tier's queue, with it
};

/// A request given to a rank, and what the decision saw.
struct Grant {
  QueueItem item;
  model::TierId tier;
  model::EngineId engine;
  std::uint32_t rank = 0;
  std::optional<std::uint32_t> rank_runner_up;
  std::optional<model::RequestId>
      request_runner_up;  // the head of another tier of the engine that lost by key or age
  bool aged = false;      // went first because it waited longer than `aging`
  bool helped = false;    // a neighbouring tier's engine took it
  base::Nanos key;
  base::Nanos queue_time;
  base::Nanos engine_left;              // of the puller, all ranks, before
  std::vector<base::Nanos> ranks_left;  // per rank, before
  base::Nanos batch_cap;                // on one batch's quota
  base::Nanos lease_until;
};
/// Winner, runner-up and thresholds in words.
std::string to_string(const Grant& grant);

struct Returned {
  QueueItem item;
  model::EngineId engine;
};

/// Levels 1 to 3 of prefill balancing: one queue per tier, engines that pull with what quota they have left,
/// and the rank with the least load inside the engine.
///
/// Algorithm. A queue is a heap on the order's key. `pull` records what an engine can take, rank by rank;
/// `serve` pairs work with pulls until none fit: the engine with the largest remaining quota first (ties by
/// id), for it the head with the smallest key among its tiers, on the rank with the least load. A request may
/// exceed the quota left (it is cut into chunks over several steps); an engine whose ranks are all full gets
/// nothing. Work that waited longer than `aging` goes first, at any engine, whatever its tier or key: nothing
/// starves. A head that no rank of the engine has memory for holds its tier there (others may not overtake it
/// within the tier), and, once aged, the whole engine. A request that is granted is leased: it comes back by
/// itself if the lease is neither renewed nor ended. Source: system facts, section 3 (pull, no prefix
/// affinity, least quota load); DualPath's fetch (arXiv 2602.21548). Cost: O(log queued + tiers log engines)
/// a request; no allocation beyond the grant's own vectors. Weakness: keys are fixed at enqueue, so an order
/// cannot depend on what else waits; pulls under memory pressure are tried again whenever a head changes,
/// O(engines) each.
class PrefillQueues {
 public:
  /// kInvalidArgument: bad bounds, an unknown order (the nearest is named), a cap or time that is not
  /// positive.
  static base::Result<PrefillQueues> make(const QueueConfig& config);

  /// The engines in service and their tiers (TierAllocator::decide). Engines not named are withdrawn.
  void set_engines(std::span<const EngineTiers> engines);

  /// `item.id` must not be in here.
  EnqueueDecision enqueue(const QueueItem& item);
  /// A queued request grew (or its hit changed): it moves to the tier of its new context and keeps its
  /// arrival. False when it is not queued.
  bool update(const QueueItem& item);
  /// Forgets a request, queued or leased (cancelled, or done). False when it is not here.
  bool remove(model::RequestId id);

  /// The engine can take this much; replaces what it said before. `ranks` may be all full (withdraws).
  void pull(model::EngineId engine, std::span<const RankOffer> ranks);
  void withdraw(model::EngineId engine);
  /// The next pairing of work and pull, none when nothing fits. The grant is leased and taken off the
  /// engine's offer.
  std::optional<Grant> serve(base::Nanos now);

  /// The puller is alive: the lease runs anew from `now`. False when there is no such lease.
  bool renew(model::RequestId id, base::Nanos now);
  /// Leases that ran out by `now`; their requests are queued again with their old arrival (`remove` those you
  /// want to treat otherwise).
  std::vector<Returned> expire(base::Nanos now);
  /// The engine is lost: all its leases come back, as by `expire`; its offer is gone.
  std::vector<Returned> lose_engine(model::EngineId engine);
  /// When the next lease runs out or the next waiting request ages; kForever when nothing does.
  base::Nanos next_event(base::Nanos now) const;

  /// Demand of the round that ends now, per tier: quota enqueued in it, and quota that waited from before.
  /// Starts the next round.
  std::vector<base::Nanos> close_round();

  std::size_t depth(model::TierId tier) const { return tiers_[tier.value].by_key.size(); }
  base::Nanos queued_quota(model::TierId tier) const { return tiers_[tier.value].quota; }
  std::size_t queued() const { return queued_; }
  std::size_t leased() const { return leases_.size(); }
  base::Nanos queued_quota() const;
  const TierMap& tiers() const { return map_; }
  const QueueConfig& config() const { return config_; }

 private:
  struct Entry {
    QueueItem item;
    base::Nanos key;
    model::TierId tier;
    model::EngineId engine;  // while leased
    enum class State : std::uint8_t { kFree, kQueued, kLeased } state = State::kFree;
  };
  struct Tier {
    IndexedHeap by_key, by_age;  // of entries
    IndexedHeap pulls;           // engines with an open offer whose range holds this tier
    base::Nanos quota;           // queued
    base::Nanos arrived;         // in this round
    base::Nanos carried;         // queued when the round began
  };
  struct Engine {
    model::EngineId id;
    TierRange range;
    std::vector<RankOffer> ranks;
    base::Nanos left;  // sum over ranks with quota left
    bool in_service = false;
    bool open = false;  // in the heaps
    bool held = false;  // has quota, but no memory for the heads it saw
  };
  struct Pick;

  PrefillQueues(const QueueConfig& config, TierMap map, const QueueOrder* order);
  void insert(std::uint32_t slot);
  void extract(std::uint32_t slot);
  void open(std::uint32_t engine);
  void close(std::uint32_t engine);
  void head_changed();
  std::optional<std::uint32_t> aged_entry(base::Nanos now) const;
  std::optional<std::uint32_t> next_engine(bool aged, bool& helps) const;
  std::optional<Pick> pick(std::uint32_t engine, std::optional<std::uint32_t> aged, bool helps) const;
  Grant grant(const Pick& pick, std::uint32_t engine, base::Nanos now);
  Returned give_back(std::uint32_t slot);
  base::Nanos cap_of(std::uint32_t tier) const;

  IndexedHeap& ages(Tier& tier) const { return order_->key_is_arrival ? tier.by_key : tier.by_age; }
  const IndexedHeap& ages(const Tier& tier) const {
    return order_->key_is_arrival ? tier.by_key : tier.by_age;
  }

  QueueConfig config_;
  TierMap map_;
  const QueueOrder* order_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<model::RequestId, std::uint32_t> slots_;  // looked up, never iterated
  std::vector<Tier> tiers_;
  std::vector<Engine> engines_;
  std::map<model::EngineId, std::uint32_t> engine_slots_;
  IndexedHeap pulls_;   // all open offers, for aged work
  IndexedHeap leases_;  // entries by expiry
  std::size_t queued_ = 0;
  std::vector<std::uint32_t> held_;           // engines
  std::optional<std::uint32_t> aged_before_;  // what went first when `serve` last looked
};

}  // namespace trimtab::policy
