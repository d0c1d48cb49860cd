#include <algorithm>

#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

class WaterlineHazard final : public DecodePolicy {
 public:
  explicit WaterlineHazard(const DecodeConfig& config)
      : DecodePolicy(config, std::make_unique<Outlook>(config.horizon_tokens)) {}

 private:
  std::optional<RankId> choose(const DecodeRequest& request, Nanos now, DecodeReason& reason) override {
    const DecodeLedger::Totals& totals = ledger().totals();
    renew_lease(now);
    const Outlook& outlook = *ledger().outlook();
    const std::int64_t waiting = request.tokens.value + request.queued_tokens.value;
    const std::int64_t mean_kv = (outlook.total_kv() + waiting) * 1000 / totals.speed_permille;
    const std::int64_t running = std::max<std::int64_t>(1, totals.running);
    const std::int64_t running_kv = totals.running > 0 ? totals.kv : request.tokens.value;
    const std::int64_t line = mean_kv + config().slack_permille * running_kv / (1000 * running);
    reason.mean_kv = TokenCount{mean_kv};
    reason.waterline = TokenCount{line};
    observe_mean(running_kv / running);
    const bool may_hold = config().ceiling_permille > 0 && now - request.waiting_since < config().hold_max;
    if (may_hold) {
      const std::int64_t full = long_run_ / 1024 * config().ceiling_running;
      const std::int64_t ceiling = full * config().ceiling_permille / 1000;
      reason.ceiling = TokenCount{ceiling};
      if (request.tokens.value <= ceiling) {
        const Outlook::Best under = outlook.fewest(request.tokens.value, std::min(line, ceiling));
        if (under.winner) return settle_expected(under, DecodeRule::kFewestExpected, reason);
        const Outlook::Best least = outlook.least_kv(request.tokens.value);
        if (!least.winner) return std::nullopt;
        reason.rule = DecodeRule::kHeldByCeiling;
        return std::nullopt;
      }
    }
    const Outlook::Best best = outlook.fewest(request.tokens.value, line);
    if (best.winner) return settle_expected(best, DecodeRule::kFewestExpected, reason);
    return settle_expected(outlook.least_kv(request.tokens.value), DecodeRule::kLeastKv, reason);
  }

  std::optional<RankId> settle_expected(const Outlook::Best& best, DecodeRule rule, DecodeReason& reason) const {
    reason.rule = rule;
    if (!best.winner) return std::nullopt;
    reason.winner = ledger().load(*best.winner);
    if (best.runner_up) reason.runner_up = ledger().load(*best.runner_up);
    reason.fitting = rule == DecodeRule::kLeastKv ? 0 : best.fitting;
    reason.expected_running_permille = best.running * 1000 / SurvivalTable::kOne;
    return best.winner;
  }

  void renew_lease(Nanos now) {
    if (config().placers <= 1) return;
    const std::int64_t epoch = now.value / config().lease_period.value;
    if (epoch == epoch_ && leased_ranks_ == ledger().open_ranks()) return;
    epoch_ = epoch;
    leased_ranks_ = ledger().open_ranks();
    outlook()->lease(config().placers, (config().placer + epoch) % config().placers);
  }

  void observe_mean(std::int64_t request_kv) {
    const std::int64_t sample = request_kv * 1024;
    long_run_ = long_run_ == 0 ? sample : long_run_ + (sample - long_run_) / 1024;
  }

  std::int64_t long_run_ = 0, epoch_ = -1;
  std::vector<RankId> leased_ranks_;
};

}  // namespace

std::unique_ptr<DecodePolicy> make_waterline_hazard(const DecodeConfig& config) {
  return std::make_unique<WaterlineHazard>(config);
}

}  // namespace trimtab::policy
