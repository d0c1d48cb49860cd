#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **Least KV**, a baseline: the rank with room that holds the least KV, then fewest running, then id. With a
/// cap on running requests it is the chapter's rule for DP attention (system facts, section 7). Cost:
/// O(distinct counts). Weakness: blind to counts; ranks of short requests fill up to their cap, and dispatch
/// and MoE wait for them.
class TotalTokens final : public DecodePolicy {
 public:
  explicit TotalTokens(DecodeConfig config) : DecodePolicy(std::move(config), DecodeLedger::Scope::kFleet) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos /*now*/, DecodeReason& reason) override {
    const DecodeLedger::Group& fleet = ledger().groups().front();
    reason.fitting = count_fitting(fleet, request.tokens);
    return settle(least_kv(fleet, request.tokens), DecodeRule::kLeastKv, reason);
  }
};

}  // namespace

std::unique_ptr<DecodePolicy> make_total_tokens(const DecodeConfig& config) {
  return std::make_unique<TotalTokens>(config);
}

}  // namespace trimtab::policy
