#include "policy/decode/expected_placer.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **Waterline over expected loads.** The waterline's rule (waterline.cpp), but a request counts, in both
/// dimensions, with the probability that it still runs a few tokens from now.
///
/// *Why.* Counts are nearly equal on all ranks, so what tells them apart is which rank is about to lose
/// requests: its place is free before the placed request has made a few steps. Fractions order ranks that
/// whole counts call equal. The probabilities come from a survival table that learns from the streams
/// (survival.h).
///
/// *Source.* Own (request study, 1.1 B and 1.7). *Cost.* O(ranks) a choice, O(1) a token. *Weakness.* Learns
/// one distribution for all requests; a placement still cannot be undone.
class WaterlineHazard final : public ExpectedPlacer {
 public:
  explicit WaterlineHazard(const DecodeConfig& config) : ExpectedPlacer(config) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos now, DecodeReason& reason) override {
    renew_lease(now);
    observe_size(request);
    const std::int64_t limit = line(request, reason);
    const Outlook::Best best = expected().fewest(request.tokens.value, limit);
    if (best.winner) return settle(best, DecodeRule::kFewestExpected, reason);
    return settle(expected().least_kv(request.tokens.value), DecodeRule::kLeastKv, reason);
  }
};

}  // namespace

std::unique_ptr<DecodePolicy> make_waterline_hazard(const DecodeConfig& config) {
  return std::make_unique<WaterlineHazard>(config);
}

}  // namespace trimtab::policy
