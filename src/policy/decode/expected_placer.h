#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "policy/decode/policy.h"

namespace trimtab::policy {

/// What the policies over expected loads share: the outlook, the line, the leases, how a choice is written
/// down.
class ExpectedPlacer : public DecodePolicy {
 protected:
  explicit ExpectedPlacer(const DecodeConfig& config)
      : DecodePolicy(config, std::make_unique<Outlook>(config.horizon_tokens)) {}

  /// Z = expected mean KV per nominal rank, the waiting requests included + slack * mean KV of a request.
  /// Written into the reason, too.
  std::int64_t line(const DecodeRequest& request, DecodeReason& reason) const;
  /// With several placers: which share of the ranks is this one's now.
  void renew_lease(Nanos now);
  std::optional<RankId> settle(const Outlook::Best& best, DecodeRule rule, DecodeReason& reason) const;
  const Outlook& expected() const { return *ledger().outlook(); }

 private:
  std::int64_t epoch_ = -1;
  std::vector<RankId> leased_ranks_;
};

}  // namespace trimtab::policy
