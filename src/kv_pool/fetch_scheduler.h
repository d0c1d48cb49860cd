#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"

namespace trimtab::kv_pool {

using ClientId = std::uint64_t;
using PlanId = std::uint64_t;  // its client's

/// Whose block gets a slot of the arena next. Pure.
///
/// Of all plans that wait and may have a slot: the higher priority, then the earlier deadline, then the one
/// whose client holds the least, then the older. A client holds at most `held_per_client` blocks and all
/// together `held_in_all`, from when a block is given a slot (to load it, or because it lies there) until
/// it is released. A plan that has started nothing for `patience` goes before all others, the longest
/// waiting first: so nobody waits for ever, whatever priorities the others claim.
///
/// Cost: one look at every plan for a pick. Weakness: a plan's blocks are started in its order only, so one
/// that lies in memory already waits behind one that has to be loaded.
class FetchScheduler {
 public:
  struct Limits {
    std::uint32_t held_per_client = 1, held_in_all = 1;
    base::Nanos patience{1'000'000'000};
  };
  struct Pick {
    ClientId client = 0;
    PlanId plan = 0;
    std::uint32_t block = 0;
    std::int32_t priority = 0;
  };

  explicit FetchScheduler(Limits limits) : limits_(limits) {}

  /// False: the client has such a plan.
  bool add(ClientId client, PlanId plan, std::uint32_t blocks, base::Nanos deadline, std::int32_t priority,
           base::Nanos now);

  /// The next block that may have a slot; to be answered by exactly one of the three below.
  std::optional<Pick> pick(base::Nanos now) const;
  void hold(const Pick& pick, base::Nanos now);  // it has one
  void skip(const Pick& pick, base::Nanos now);  // it needs none any more
  void put_off(const Pick& pick);  // there is none for it at present: its plan sits this turn out
  void new_turn();

  /// A block that was held is not any more.
  void release(ClientId client, PlanId plan);
  /// Nothing more of it is started, and it has no deadline any more; what it holds stays held.
  void close(ClientId client, PlanId plan);
  /// Forgets it and whatever it holds.
  void cancel(ClientId client, PlanId plan);
  void leave(ClientId client);

  /// Plans whose deadline has passed and that were not closed since.
  std::vector<std::pair<ClientId, PlanId>> late(base::Nanos now) const;
  base::Nanos next_deadline() const;

  std::uint32_t held() const { return held_; }
  std::uint32_t held_by(ClientId client) const;
  std::size_t plans() const { return plans_.size(); }
  const Limits& limits() const { return limits_; }

 private:
  struct Plan {
    std::uint32_t next = 0, blocks = 0, held = 0;
    std::int32_t priority = 0;
    base::Nanos deadline, last_start;
    std::uint64_t order = 0;
    bool put_off = false;
  };
  using Key = std::pair<ClientId, PlanId>;
  bool before(const Key& a, const Plan& x, const Key& b, const Plan& y, base::Nanos now) const;

  Limits limits_;
  std::map<Key, Plan> plans_;
  std::map<ClientId, std::uint32_t> held_by_;
  std::uint32_t held_ = 0;
  std::uint64_t last_order_ = 0;
};

}  // namespace trimtab::kv_pool
