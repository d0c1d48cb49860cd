#include "kv_store/repair_queue.h"

#include <algorithm>

namespace trimtab::kv_store {

void ByteRate::refill(base::Nanos now) {
  constexpr std::int64_t kSpanMost = 1'000'000'000'000;  // keeps the product within 64 bits at 100 GB/s
  const std::int64_t span = std::min(now.value - at_.value, kSpanMost);
  if (span <= 0) return;
  const std::int64_t micros = span / 1'000;  // the rest is kept for the next time
  saved_ = std::min(rate_, saved_ + rate_ / 1'000 * micros / 1'000);
  at_ = span == kSpanMost ? now : at_ + base::Nanos{micros * 1'000};
}

base::Nanos ByteRate::ready_at(base::Nanos now) {
  if (ready(now)) return now;
  return now + base::Nanos{(1 - saved_) * 1'000 / std::max<std::int64_t>(1, rate_ / 1'000'000) + 1'000};
}

void RepairQueue::push(const Job& job) {
  quiet_until_ = std::min(quiet_until_, job.not_before);
  const auto found = jobs_.find(job.key);
  if (found != jobs_.end()) {
    // Sooner and sterner of the two.
    found->second.job.not_before = std::min(found->second.job.not_before, job.not_before);
    found->second.job.reason = std::max(found->second.job.reason, job.reason);
    return;
  }
  if (jobs_.size() >= capacity_) {
    ++dropped_;
    return;
  }
  jobs_.emplace(job.key, Entry{job, ++last_});
  order_.emplace_back(job.key, last_);
}

std::optional<RepairQueue::Job> RepairQueue::pop(base::Nanos now) {
  if (now < quiet_until_) return std::nullopt;
  base::Nanos earliest = base::kForever;
  for (std::size_t looked = 0, most = order_.size(); looked < most; ++looked) {
    const auto [key, order] = order_.front();
    order_.pop_front();
    const auto found = jobs_.find(key);
    if (found == jobs_.end() || found->second.order != order) continue;
    if (found->second.job.not_before > now) {
      earliest = std::min(earliest, found->second.job.not_before);
      order_.emplace_back(key, order);
      continue;
    }
    const Job job = found->second.job;
    jobs_.erase(found);
    return job;
  }
  quiet_until_ = earliest;
  return std::nullopt;
}

}  // namespace trimtab::kv_store
