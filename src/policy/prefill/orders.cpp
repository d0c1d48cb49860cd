#include "policy/prefill/orders.h"

#include <algorithm>
#include <string>

#include "base/nearest.h"

namespace trimtab::policy {

namespace {

using base::Nanos;

/// `percent` of `work` after `start`, saturating: a key is compared, never waited for.
Nanos after(Nanos start, Nanos work, std::int64_t percent) {
  const __int128 at = static_cast<__int128>(start.value) + static_cast<__int128>(work.value) * percent / 100;
  return Nanos{static_cast<std::int64_t>(std::min<__int128>(at, INT64_MAX))};
}

Nanos fifo(const QueueItem& item, const OrderConfig&) { return item.arrival; }

Nanos earliest_deadline(const QueueItem& item, const OrderConfig& config) {
  Nanos target{0};
  if (!config.tier_targets.empty()) {
    const auto above = std::ranges::upper_bound(config.target_bounds_tokens, item.context.value);
    const auto tier = static_cast<std::size_t>(above - config.target_bounds_tokens.begin());
    target = config.tier_targets[std::min(tier, config.tier_targets.size() - 1)];
  }
  return std::min(item.deadline, after(item.arrival + target, item.quota, config.edf_work_percent));
}

Nanos arrival_plus_work(const QueueItem& item, const OrderConfig& config) {
  return after(item.arrival, item.quota, config.arrival_work_percent);
}

constexpr QueueOrder kOrders[] = {
    {"fifo", "first come, first served", fifo, true},
    {"edf", "earliest deadline: arrival + the tier's target + 1.5 x work, or the client's own if earlier",
     earliest_deadline, false},
    {"arrival_plus_work", "arrival + predicted work: short work overtakes what arrived just before",
     arrival_plus_work, false},
};

}  // namespace

std::span<const QueueOrder> queue_orders() { return kOrders; }

base::Result<const QueueOrder*> find_queue_order(std::string_view name) {
  std::vector<std::string_view> names;
  for (const QueueOrder& order : kOrders) {
    if (order.name == name) return &order;
    names.push_back(order.name);
  }
  const std::string close = base::nearest(name, names);
  std::string message = "unknown queue order '" + std::string(name) + "'";
  message += close.empty() ? "; there are fifo, edf, arrival_plus_work" : "; did you mean '" + close + "'?";
  return base::fail(base::Code::kInvalidArgument, std::move(message), "prefill");
}

}  // namespace trimtab::policy
