#include <algorithm>

#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **Round robin**, the baseline that knows nothing: the next rank by id that has room. Source: system facts,
/// section 7 (first row). Cost: O(1) when there is room, O(ranks) when all are full. Weakness: looks at no
/// load at all; it is here to be compared with.
class RoundRobin final : public DecodePolicy {
 public:
  explicit RoundRobin(DecodeConfig config) : DecodePolicy(std::move(config), DecodeLedger::Scope::kFleet) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos /*now*/, DecodeReason& reason) override {
    const std::vector<RankId>& ranks = ledger().open_ranks();
    auto at = last_ ? std::upper_bound(ranks.begin(), ranks.end(), *last_) : ranks.begin();
    for (std::size_t seen = 0; seen < ranks.size(); ++seen, ++at) {
      if (at == ranks.end()) at = ranks.begin();
      if (!ledger().has_room(*at, request.tokens)) continue;
      if (reason.winner) {
        reason.runner_up = ledger().load(*at);
        break;
      }
      reason.winner = ledger().load(*at);
      reason.rule = DecodeRule::kNextInTurn;
    }
    if (!reason.winner) return std::nullopt;
    reason.fitting = count_fitting(ledger().groups().front(), request.tokens);
    last_ = reason.winner->rank;
    return last_;
  }

  std::optional<RankId> last_;  // survives ranks that leave: the turn goes to the next id
};

}  // namespace

std::unique_ptr<DecodePolicy> make_round_robin(const DecodeConfig& config) {
  return std::make_unique<RoundRobin>(config);
}

}  // namespace trimtab::policy
