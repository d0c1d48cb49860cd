#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/cluster_config.h"
#include "model/ids.h"

namespace trimtab::policy {

struct AdmissionConfig {
  std::int64_t in_flight_max = 256;              // accepted and not ended: 429 beyond
  std::int64_t queued_max = 10'000;              // waiting for a prefill engine: 503 (529) beyond
  base::Nanos ttft_max{600'000'000'000};         // predicted TTFT beyond this is refused: 503 (529)
  base::Nanos retry_after_max{600'000'000'000};  // the longest wait that is ever suggested
};

AdmissionConfig admission_config(const model::GatewayConfig& config);

/// Engines that take work from tiers first..last, and how much quota they serve per second: 1,000 for each
/// rank that works all the time. The prefill allocation of the round, in this policy's terms.
struct ServingPool {
  model::TierId first, last;
  std::int64_t rate_permille = 0;
};

struct AdmissionRequest {
  model::RequestId id;
  model::TierId tier;
  base::Nanos work;                       // predicted quota of its own prefill, on one rank
  base::Nanos deadline = base::kForever;  // instant
};

enum class AdmissionRule : std::uint8_t {
  kAccepted,
  kInFlightLimit,
  kQueueLimit,
  kDeadlinePassed,
  kDeadlineTooNear,  // predicted first token after the deadline
  kTtftLimit,
  kNoEngine,  // nobody serves any tier
};
std::string_view name(AdmissionRule rule);

struct AdmissionDecision {
  bool accepted = false;
  base::Code code = base::Code::kInternal;  // when refused
  AdmissionRule rule = AdmissionRule::kAccepted;
  std::int64_t retry_after_s = 0;  // at least 1 when waiting can help, 0 when it cannot
  // What it was judged by.
  base::Nanos queued_quota;        // ahead of it: the queues of all tiers that its engines serve
  std::int64_t rate_permille = 0;  // of those engines
  base::Nanos predicted_ttft;
  base::Nanos limit;  // what the prediction was held against
  std::int64_t in_flight = 0, queued = 0;
};

/// "refused, predicted TTFT 12.4 s beyond 10.0 s: 48.0 s queued over 4.0 ranks; retry after 3 s".
std::string describe(const AdmissionDecision& decision);

/// **Predicted TTFT at the door.** Refuses at once what would only wait and fail: predicted TTFT = quota
/// queued in the tiers that the request's engines serve, divided by the rate at which they serve, + its own
/// work on one rank. Beside it two plain limits (requests in flight, requests queued) bound memory whatever
/// the prediction says.
///
/// *Why.* Queue length in requests says little when one needs 0.1 s and another 100 s; quota is time already.
/// The same number tells the client when to come back: Retry-After is how long it takes until the prediction
/// falls under the limit, in whole seconds, at least 1.
/// *Source.* Compute quotas: system facts, section 2; the prediction is the fluid bound of FIFO.
/// *Cost.* O(pools x tiers), a handful. *Weakness.* Other orders than FIFO (earliest deadline, aging) serve a
/// request earlier or later than predicted; work already inside the engines, at most a few step budgets, is
/// not counted; decode slots are not looked at.
class AdmissionPolicy {
 public:
  explicit AdmissionPolicy(AdmissionConfig config);

  /// May be asked twice: at the door, and again (accepted by then) when the request's own work is known.
  AdmissionDecision decide(const AdmissionRequest& request, base::Nanos now) const;

  /// The allocation of the prefill engines; replaces the last one.
  void observe_serving(std::vector<ServingPool> pools);
  /// Accepted and not ended yet. Ids must be new.
  void accepted(model::RequestId id);
  /// In a tier's queue with this much quota; again after a requeue or a change of tier.
  void queued(model::RequestId id, model::TierId tier, base::Nanos work);
  /// An engine pulled it.
  void pulled(model::RequestId id);
  /// Finished, failed or cancelled, wherever it was. False when it was not known.
  bool ended(model::RequestId id);

  std::int64_t in_flight() const { return static_cast<std::int64_t>(requests_.size()); }
  std::int64_t queued_requests() const { return queued_; }
  base::Nanos queued_quota(model::TierId tier) const;

 private:
  struct Request {
    bool queued = false;
    model::TierId tier;
    base::Nanos work;
  };
  struct Ahead {
    base::Nanos quota;
    std::int64_t rate_permille = 0;
  };
  void leave_queue(Request& request);
  Ahead ahead_of(model::TierId tier) const;

  AdmissionConfig config_;
  std::unordered_map<model::RequestId, Request> requests_;  // looked up, never iterated
  std::map<model::TierId, base::Nanos> quota_;              // queued, per tier
  std::vector<ServingPool> pools_;
  std::int64_t queued_ = 0;
};

}  // namespace trimtab::policy
