#include <algorithm>

#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **Waterline.** Among the ranks whose KV, the request included, stays under a line Z, the one with the
/// fewest running requests (then least KV, then id); if no rank stays under it, the one with the least KV.
///
///   Z = mean KV per rank, the waiting requests included + 2.4 * mean KV of a running request
///
/// *Why.* The step waits for the rank with the most KV (attention) and for the one with the most requests
/// (dispatch), so both maxima must be kept down. Under the line a request cannot become the new KV maximum by
/// much, and there counts decide: short requests fill ranks of low concurrency though their KV is large, and
/// a long request, which fits nowhere, goes to the least KV. The slack is measured in requests rather than in
/// percent, because what can be evened out is limited by the size of one request: DualPath's 5 % is right for
/// batches near 64 and too narrow for small ones (at 16 per rank the best is 15 %, which is 2.4 / 16).
///
/// *Source.* Own; a generalisation of DualPath's rule (arXiv 2602.21548). In the request study (percent of an
/// ideal step, 1.1 to 1.3): 97.7 / 90.9 / 88.1 at 32x64, 32x16 and 144x16 ranks x requests, against 97.5 /
/// 89.2 / 85.7 of DualPath and 91.3 / 81 / 75.1 of least KV.
///
/// *Cost.* O(distinct counts) for the choice; counting the fitting ranks for the reason reads all, 8 bytes
/// each.
///
/// *Weakness.* A placement cannot be undone: without migration 2 to 12 points stay open at small batches.
/// Counts are compared as they are, not by how soon requests will end. The mean request is that of the
/// moment, so a fleet that runs almost nothing has almost no slack; then the least-KV rule spreads.
///
/// *Ceiling* (off by default). Waiting can beat placing on a rank that is already the slowest: no rank is
/// lifted above `ceiling` x (long-run mean KV of a full rank) while the request has waited less than
/// `hold_max`. The study found 3 to 9 points for it with preemption at hand and fresh state.
class Waterline final : public DecodePolicy {
 public:
  explicit Waterline(DecodeConfig config) : DecodePolicy(std::move(config), DecodeLedger::Scope::kFleet) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos now, DecodeReason& reason) override {
    const DecodeLedger::Totals& totals = ledger().totals();
    const DecodeLedger::Group& fleet = ledger().groups().front();
    const std::int64_t waiting = request.tokens.value + request.queued_tokens.value;
    const std::int64_t mean_kv = (totals.kv + waiting) * 1000 / totals.speed_permille;
    // Nothing runs yet: the request itself is the only request to take a mean of.
    const std::int64_t running = std::max<std::int64_t>(1, totals.running);
    const std::int64_t running_kv = totals.running > 0 ? totals.kv : request.tokens.value;
    const std::int64_t line = mean_kv + config().slack_permille * running_kv / (1000 * running);
    reason.mean_kv = TokenCount{mean_kv};
    reason.waterline = TokenCount{line};
    observe_mean(running_kv / running);

    const bool may_hold = config().ceiling_permille > 0 && now - request.waiting_since < config().hold_max;
    if (may_hold && !fits_ceiling(fleet, request.tokens, reason)) return std::nullopt;
    RankIndex::Best best = fewest_running(fleet, request.tokens, line);
    reason.fitting = best.winner ? count_fitting(fleet, request.tokens, line) : 0;
    if (best.winner) return settle(best, DecodeRule::kFewestBelowLine, reason);
    return settle(least_kv(fleet, request.tokens), DecodeRule::kLeastKv, reason);
  }

  /// The running mean over about a thousand decisions, in 1/1024 tokens: integers, so that every machine
  /// agrees.
  void observe_mean(std::int64_t request_kv) {
    const std::int64_t sample = request_kv * 1024;
    long_run_ = long_run_ == 0 ? sample : long_run_ + (sample - long_run_) / 1024;
  }

  bool fits_ceiling(const DecodeLedger::Group& fleet, TokenCount tokens, DecodeReason& reason) const {
    bool room_somewhere = false, taller_than_all = true;
    for (const auto& kind : fleet.kinds) {
      const std::int64_t full = long_run_ / 1024 * kind->capacity().max_running;
      const std::int64_t ceiling = full * config().ceiling_permille / 1000;
      reason.ceiling = std::max(reason.ceiling, TokenCount{ceiling});
      if (tokens.value <= ceiling) taller_than_all = false;
      room_somewhere = room_somewhere || kind->least_kv(tokens.value).winner.has_value();
      if (kind->fewest(tokens.value, ceiling - tokens.value).winner) return true;
    }
    // A request longer than the ceiling itself would wait for nothing; one without room waits for room.
    if (taller_than_all || !room_somewhere) return true;
    reason.rule = DecodeRule::kHeldByCeiling;
    return false;
  }

  std::int64_t long_run_ = 0;
};

}  // namespace

std::unique_ptr<DecodePolicy> make_waterline(const DecodeConfig& config) {
  return std::make_unique<Waterline>(config);
}

}  // namespace trimtab::policy
