#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **DualPath's 5 % rule**, the published baseline. Across groups: the group with the least total tokens.
/// Inside it, with the line Z = 1.05 * (KV of its ranks + the requests being placed) / ranks: among the ranks
/// with memory that stay at or under Z, the fewest requests; if none does, the least KV. (DualPath's "high"
/// ranks are those strictly above Z.)
///
/// *Source.* DualPath, arXiv 2602.21548, inter-engine scheduling of decode engines; system facts, section 4.
/// *Cost.* O(groups) for the first level, O(distinct counts) for the second.
/// *Weakness.* The first level sees one dimension only, and sums: groups must be of equal size, or the small
/// one gets as many tokens as the large one. 5 % of the mean is less than one request when few run
/// per rank, so small batches fall back to least KV (89 against 91 points at 16 per rank).
///
/// One request at a time, and so different from the paper in one thing: it drains the queue into private
/// queues per group and lets a request wait there (dualpath_queues.cpp does that); here the request goes on
/// to the next group when the first has no room, so no rank idles while another group's queue is long. Of the
/// requests that wait beside it (`queued_tokens`) a group counts its share by ranks.
class DualPath final : public DecodePolicy {
 public:
  explicit DualPath(DecodeConfig config) : DecodePolicy(std::move(config), DecodeLedger::Scope::kGroup) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos /*now*/, DecodeReason& reason) override {
    const DecodeLedger::Group* lightest = nullptr;
    for (const DecodeLedger::Group& group : ledger().groups())
      if (lightest == nullptr || group.totals.kv < lightest->totals.kv) lightest = &group;
    if (auto rank = choose_inside(*lightest, request, reason)) return rank;
    const DecodeLedger::Group* next = nullptr;
    for (const DecodeLedger::Group& group : ledger().groups()) {
      if (next != nullptr && group.totals.kv >= next->totals.kv) continue;
      if (least_kv(group, request.tokens).winner) next = &group;
    }
    if (next == nullptr) return std::nullopt;
    return choose_inside(*next, request, reason);
  }

  std::optional<RankId> choose_inside(const DecodeLedger::Group& group, const DecodeRequest& request,
                                      DecodeReason& reason) const {
    const std::int64_t queued = request.queued_tokens.value * group.totals.ranks / ledger().totals().ranks;
    const std::int64_t sum = group.totals.kv + queued + request.tokens.value;
    return under_relaxed_mean(group, request.tokens, sum, config().relax_percent, reason);
  }
};

}  // namespace

std::unique_ptr<DecodePolicy> make_dualpath(const DecodeConfig& config) {
  return std::make_unique<DualPath>(config);
}

}  // namespace trimtab::policy
