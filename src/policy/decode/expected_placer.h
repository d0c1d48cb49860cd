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
  /// What the dispersion of sizes is learnt from: once for each request that is asked for.
  void observe_size(const DecodeRequest& request);
  std::optional<RankId> settle(const Outlook::Best& best, DecodeRule rule, DecodeReason& reason) const;
  const Outlook& expected() const { return *ledger().outlook(); }

 private:
  /// What can be evened out depends on how different the requests are: where they are alike, a rank needs
  /// less room above the mean to take part. The configured slack is for sizes as dispersed as in
  /// conversations (squared coefficient of variation of 1.2 and more); below, it shrinks with the dispersion,
  /// to a quarter.
  std::int64_t slack_permille() const;
  static constexpr std::int64_t kSizes = 4'096, kSizesLeast = 1'024, kSizeMax = 1 << 22,
                                kVariationWide = 1'200;
  std::int64_t sizes_ = 0, size_sum_ = 0, square_sum_ = 0;  // of the requests seen lately, fading by half
  RequestId observed_{UINT64_MAX};

  std::int64_t epoch_ = -1;
  std::vector<RankId> leased_ranks_;
};

}  // namespace trimtab::policy
