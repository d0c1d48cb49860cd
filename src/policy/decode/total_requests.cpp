#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **Fewest requests**, a baseline: the rank with room that runs the fewest, then least KV, then id. The
/// usual "least connections". Source: folklore. Cost: O(distinct counts). Weakness: blind to length, so the
/// rank with the long requests keeps getting more (system facts, section 4: never one-dimensional by count).
class TotalRequests final : public DecodePolicy {
 public:
  explicit TotalRequests(DecodeConfig config)
      : DecodePolicy(std::move(config), DecodeLedger::Scope::kFleet) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos /*now*/, DecodeReason& reason) override {
    const DecodeLedger::Group& fleet = ledger().groups().front();
    reason.fitting = count_fitting(fleet, request.tokens);
    return settle(fewest_running(fleet, request.tokens), DecodeRule::kFewest, reason);
  }
};

}  // namespace

std::unique_ptr<DecodePolicy> make_total_requests(const DecodeConfig& config) {
  return std::make_unique<TotalRequests>(config);
}

}  // namespace trimtab::policy
