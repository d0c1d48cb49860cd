#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/ids.h"
#include "model/request.h"

namespace trimtab::policy {

/// What a prefill queue knows of a request.
struct QueueItem {
  model::RequestId id;
  base::TokenCount context;  // total: prompt and what was generated so far; decides the tier
  base::Nanos quota;         // predicted cost of what is left to compute
  std::int64_t blocks = 0;   // KV blocks it needs on one rank
  base::Nanos arrival;       // its first arrival: the clock of order and aging; kept when work comes back
  base::Nanos deadline = base::kForever;
};

struct OrderConfig {
  /// edf: which target a request has: by its total context, exclusive upper bounds, ascending. Not by the
  /// queue's tiers: one queue for all keeps the targets.
  std::vector<std::int64_t> target_bounds_tokens = {16'384, 65'536, 262'144};
  /// edf: what a request may wait, before its own work; the last one serves all longer contexts.
  std::vector<base::Nanos> tier_targets = {base::Nanos{2'000'000'000}, base::Nanos{4'000'000'000},
                                           base::Nanos{8'000'000'000}, base::Nanos{16'000'000'000}};
  std::int64_t edf_work_percent = 150;      // edf: work counts this much in the deadline
  std::int64_t arrival_work_percent = 100;  // arrival_plus_work
};

/// The order inside a queue: the smallest key goes first, ties by id. Fixed at enqueue, so a queue is a heap.
struct QueueOrder {
  std::string_view name;
  std::string_view says;  // one line for a user
  base::Nanos (*key)(const QueueItem& item, const OrderConfig& config);
  bool key_is_arrival = false;  // then the queue needs no second heap for aging
};

/// Every order there is; a new one is one line in orders.cpp.
std::span<const QueueOrder> queue_orders();

/// kInvalidArgument naming the nearest known order.
base::Result<const QueueOrder*> find_queue_order(std::string_view name);

}  // namespace trimtab::policy
