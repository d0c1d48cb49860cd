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

/// Refuses at the door what would only wait and fail.
class AdmissionPolicy {
 public:
  explicit AdmissionPolicy(AdmissionConfig config);

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
  void leave_queue(Request& request);

  AdmissionConfig config_;
  std::unordered_map<model::RequestId, Request> requests_;  // looked up, never iterated
  std::map<model::TierId, base::Nanos> quota_;              // queued, per tier
  std::vector<ServingPool> pools_;
  std::int64_t queued_ = 0;
};

}  // namespace trimtab::policy
