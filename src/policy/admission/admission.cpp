#include "policy/admission/admission.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/check.h"
#include "base/duration_text.h"

namespace trimtab::policy {
namespace {

using base::Nanos;

constexpr std::int64_t kSecondNs = 1'000'000'000;

/// quota / rate without overflow: the quota of a queue can be days, and rates are in thousandths.
Nanos served_in(Nanos quota, std::int64_t rate_permille) {
  const auto span = static_cast<__int128>(quota.value) * 1000 / rate_permille;
  return span > base::kForever.value / 2 ? Nanos{base::kForever.value / 2}
                                         : Nanos{static_cast<std::int64_t>(span)};
}

}  // namespace

AdmissionConfig admission_config(const model::GatewayConfig& config) {
  AdmissionConfig admission;
  admission.in_flight_max = config.requests_in_flight_max;
  admission.queued_max = config.requests_queued_max;
  admission.ttft_max = Nanos{config.queue_quota_limit_ms * 1'000'000};
  return admission;
}

AdmissionPolicy::AdmissionPolicy(AdmissionConfig config) : config_(config) {
  TRIMTAB_CHECK(config.in_flight_max > 0 && config.queued_max > 0 && config.ttft_max.value > 0 &&
                    config.retry_after_max.value >= kSecondNs,
                "admission limits must be positive");
}

AdmissionPolicy::Ahead AdmissionPolicy::ahead_of(model::TierId tier) const {
  // The pools that serve the tier, and every tier they serve. In a round in which nobody serves it (it had no
  // demand), the next round will: all queues over all engines is the cautious guess until then.
  Ahead ahead;
  bool served = false;
  for (const ServingPool& pool : pools_) served = served || (pool.first <= tier && tier <= pool.last);
  std::map<model::TierId, bool> counted;
  const ServingPool* before = nullptr;
  for (const ServingPool& pool : pools_) {
    if (served && !(pool.first <= tier && tier <= pool.last)) continue;
    ahead.rate_permille += pool.rate_permille;
    // Engines of one range follow one another: their queues have been counted.
    if (before != nullptr && before->first == pool.first && before->last == pool.last) continue;
    before = &pool;
    for (auto queue = quota_.lower_bound(pool.first); queue != quota_.end() && queue->first <= pool.last;
         ++queue)
      if (counted.emplace(queue->first, true).second) ahead.quota += queue->second;
  }
  if (!served) {
    for (const auto& [queued_tier, quota] : quota_)
      if (counted.emplace(queued_tier, true).second) ahead.quota += quota;
  }
  return ahead;
}

AdmissionDecision AdmissionPolicy::decide(const AdmissionRequest& request, Nanos now) const {
  AdmissionDecision decision;
  // Asked again once its work is known, a request must not stand in its own way.
  decision.in_flight = in_flight() - static_cast<std::int64_t>(requests_.count(request.id));
  decision.queued = queued_;
  const Ahead ahead = ahead_of(request.tier);
  decision.queued_quota = ahead.quota;
  decision.rate_permille = ahead.rate_permille;
  decision.limit = config_.ttft_max;
  if (request.deadline != base::kForever) decision.limit = std::min(decision.limit, request.deadline - now);

  const auto refuse = [&](AdmissionRule rule, base::Code code, Nanos wait) {
    decision.rule = rule;
    decision.code = code;
    const Nanos bounded = std::clamp(wait, Nanos{1}, config_.retry_after_max);
    decision.retry_after_s = (bounded.value + kSecondNs - 1) / kSecondNs;
    return decision;
  };
  if (request.deadline <= now) {
    refuse(AdmissionRule::kDeadlinePassed, base::Code::kDeadlineExceeded, Nanos{1});
    decision.retry_after_s = 0;  // its time is over; waiting cannot help
    return decision;
  }
  if (ahead.rate_permille <= 0)
    return refuse(AdmissionRule::kNoEngine, base::Code::kUnavailable, Nanos{kSecondNs});
  const Nanos drain = served_in(ahead.quota, ahead.rate_permille);
  decision.predicted_ttft = drain + request.work;
  if (decision.in_flight >= config_.in_flight_max)
    return refuse(AdmissionRule::kInFlightLimit, base::Code::kResourceExhausted, decision.predicted_ttft);
  if (queued_ >= config_.queued_max)
    return refuse(AdmissionRule::kQueueLimit, base::Code::kOverloaded, drain);
  if (decision.predicted_ttft > decision.limit) {
    const bool by_deadline = decision.limit < config_.ttft_max;
    refuse(by_deadline ? AdmissionRule::kDeadlineTooNear : AdmissionRule::kTtftLimit, base::Code::kOverloaded,
           decision.predicted_ttft - decision.limit);
    // A prompt whose own work exceeds the limit fails on an idle cluster too.
    if (request.work > decision.limit) decision.retry_after_s = 0;
    return decision;
  }
  decision.accepted = true;
  return decision;
}

void AdmissionPolicy::observe_serving(std::vector<ServingPool> pools) {
  for (const ServingPool& pool : pools)
    TRIMTAB_CHECK(pool.first <= pool.last && pool.rate_permille >= 0, "serving pool");
  pools_ = std::move(pools);
}

void AdmissionPolicy::accepted(model::RequestId id) {
  const bool is_new = requests_.emplace(id, Request{}).second;
  TRIMTAB_CHECK(is_new, "request " + std::to_string(id.value) + " was accepted twice");
}

void AdmissionPolicy::queued(model::RequestId id, model::TierId tier, Nanos work) {
  const auto found = requests_.find(id);
  TRIMTAB_CHECK(found != requests_.end(), "request " + std::to_string(id.value) + " was not accepted");
  TRIMTAB_CHECK(work.value >= 0, "work of request " + std::to_string(id.value));
  leave_queue(found->second);
  found->second = {true, tier, work};
  quota_[tier] += work;
  ++queued_;
}

void AdmissionPolicy::leave_queue(Request& request) {
  if (!request.queued) return;
  request.queued = false;
  quota_[request.tier] -= request.work;
  --queued_;
}

void AdmissionPolicy::pulled(model::RequestId id) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) leave_queue(found->second);
}

bool AdmissionPolicy::ended(model::RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  leave_queue(found->second);
  requests_.erase(found);
  return true;
}

Nanos AdmissionPolicy::queued_quota(model::TierId tier) const {
  const auto found = quota_.find(tier);
  return found == quota_.end() ? Nanos{} : found->second;
}

std::string_view name(AdmissionRule rule) {
  switch (rule) {
    case AdmissionRule::kAccepted:
      return "accepted";
    case AdmissionRule::kInFlightLimit:
      return "in_flight_limit";
    case AdmissionRule::kQueueLimit:
      return "queue_limit";
    case AdmissionRule::kDeadlinePassed:
      return "deadline_passed";
    case AdmissionRule::kDeadlineTooNear:
      return "deadline_too_near";
    case AdmissionRule::kTtftLimit:
      return "ttft_limit";
    case AdmissionRule::kNoEngine:
      return "no_engine";
  }
  return "unknown";
}

std::string describe(const AdmissionDecision& decision) {
  char ranks[32];
  std::snprintf(ranks, sizeof ranks, "%.1f", static_cast<double>(decision.rate_permille) / 1000);
  std::string line = decision.accepted ? "admitted" : "refused (" + std::string(name(decision.rule)) + ")";
  line += ": predicted TTFT " + base::duration_text(decision.predicted_ttft) + ", limit " +
          base::duration_text(decision.limit) + "; " + base::duration_text(decision.queued_quota) +
          " queued ahead over " + ranks + " ranks; " + std::to_string(decision.in_flight) + " in flight, " +
          std::to_string(decision.queued) + " queued";
  if (decision.retry_after_s > 0) line += "; retry after " + std::to_string(decision.retry_after_s) + " s";
  return line;
}

}  // namespace trimtab::policy
