#include "kv_pool/fetch_scheduler.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace trimtab::kv_pool {

bool FetchScheduler::add(ClientId client, PlanId plan, std::uint32_t blocks, base::Nanos deadline,
                         std::int32_t priority, base::Nanos now) {
  Plan one;
  one.blocks = blocks;
  one.priority = priority;
  one.deadline = deadline;
  one.last_start = now;
  one.order = ++last_order_;
  return plans_.emplace(Key{client, plan}, one).second;
}

std::uint32_t FetchScheduler::held_by(ClientId client) const {
  const auto found = held_by_.find(client);
  return found == held_by_.end() ? 0 : found->second;
}

bool FetchScheduler::before(const Key& a, const Plan& x, const Key& b, const Plan& y, base::Nanos now) const {
  const bool x_overdue = now - x.last_start >= limits_.patience;
  const bool y_overdue = now - y.last_start >= limits_.patience;
  if (x_overdue != y_overdue) return x_overdue;
  if (x_overdue) return std::tie(x.last_start, x.order) < std::tie(y.last_start, y.order);
  if (x.priority != y.priority) return x.priority > y.priority;
  if (x.deadline != y.deadline) return x.deadline < y.deadline;
  return std::make_tuple(held_by(a.first), x.order) < std::make_tuple(held_by(b.first), y.order);
}

std::optional<FetchScheduler::Pick> FetchScheduler::pick(base::Nanos now) const {
  if (held_ >= limits_.held_in_all) return {};
  const std::pair<const Key, Plan>* best = nullptr;
  for (const auto& one : plans_) {
    const Plan& plan = one.second;
    if (plan.put_off || plan.next == plan.blocks || held_by(one.first.first) >= limits_.held_per_client)
      continue;
    if (best == nullptr || before(one.first, plan, best->first, best->second, now)) best = &one;
  }
  if (best == nullptr) return {};
  return Pick{best->first.first, best->first.second, best->second.next, best->second.priority};
}

void FetchScheduler::hold(const Pick& pick, base::Nanos now) {
  skip(pick, now);
  ++plans_.at({pick.client, pick.plan}).held;
  ++held_by_[pick.client];
  ++held_;
}

void FetchScheduler::skip(const Pick& pick, base::Nanos now) {
  Plan& plan = plans_.at({pick.client, pick.plan});
  TRIMTAB_CHECK(plan.next == pick.block);
  ++plan.next;
  plan.last_start = now;
}

void FetchScheduler::put_off(const Pick& pick) { plans_.at({pick.client, pick.plan}).put_off = true; }

void FetchScheduler::new_turn() {
  for (auto& [key, plan] : plans_) plan.put_off = false;
}

void FetchScheduler::release(ClientId client, PlanId plan) {
  Plan& one = plans_.at({client, plan});
  TRIMTAB_CHECK(one.held > 0);
  --one.held;
  --held_;
  if (--held_by_.at(client) == 0) held_by_.erase(client);
}

void FetchScheduler::close(ClientId client, PlanId plan) {
  Plan& one = plans_.at({client, plan});
  one.next = one.blocks;
  one.deadline = base::kForever;
}

void FetchScheduler::cancel(ClientId client, PlanId plan) {
  const auto found = plans_.find({client, plan});
  if (found == plans_.end()) return;
  while (found->second.held > 0) release(client, plan);
  plans_.erase(found);
}

void FetchScheduler::leave(ClientId client) {
  for (auto plan = plans_.lower_bound({client, 0}); plan != plans_.end() && plan->first.first == client;) {
    const PlanId id = (plan++)->first.second;
    cancel(client, id);
  }
}

std::vector<std::pair<ClientId, PlanId>> FetchScheduler::late(base::Nanos now) const {
  std::vector<Key> keys;
  for (const auto& [key, plan] : plans_)
    if (plan.deadline <= now) keys.push_back(key);
  return keys;
}

base::Nanos FetchScheduler::next_deadline() const {
  base::Nanos next = base::kForever;
  for (const auto& [key, plan] : plans_) next = std::min(next, plan.deadline);
  return next;
}

}  // namespace trimtab::kv_pool
