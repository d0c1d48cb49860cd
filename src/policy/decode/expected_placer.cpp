#include "policy/decode/expected_placer.h"

#include <algorithm>

namespace trimtab::policy {

std::int64_t ExpectedPlacer::line(const DecodeRequest& request, DecodeReason& reason) const {
  const DecodeLedger::Totals& totals = ledger().totals();
  const std::int64_t waiting = request.tokens.value + request.queued_tokens.value;
  const std::int64_t mean_kv = (expected().total_kv() + waiting) * 1000 / totals.speed_permille;
  // Nothing runs yet: the request itself is the only request to take a mean of.
  const std::int64_t running = std::max<std::int64_t>(1, totals.running);
  const std::int64_t running_kv = totals.running > 0 ? totals.kv : request.tokens.value;
  const std::int64_t line = mean_kv + slack_permille() * running_kv / (1000 * running);
  reason.mean_kv = TokenCount{mean_kv};
  reason.waterline = TokenCount{line};
  return line;
}

void ExpectedPlacer::observe_size(const DecodeRequest& request) {
  if (request.id == observed_) return;  // held, and asked for again
  observed_ = request.id;
  const std::int64_t tokens = std::min<std::int64_t>(request.tokens.value, kSizeMax);
  sizes_ += 1;
  size_sum_ += tokens;
  square_sum_ += tokens * tokens;
  if (sizes_ < kSizes) return;
  sizes_ /= 2;
  size_sum_ /= 2;
  square_sum_ /= 2;
}

std::int64_t ExpectedPlacer::slack_permille() const {
  if (sizes_ < kSizesLeast) return config().slack_permille;
  // Squared coefficient of variation, in thousandths; the products need more than 64 bits.
  const __int128 squares = static_cast<__int128>(square_sum_) * sizes_ * 1000;
  const auto variation =
      static_cast<std::int64_t>(squares / (static_cast<__int128>(size_sum_) * size_sum_)) - 1000;
  return config().slack_permille * std::clamp<std::int64_t>(variation, kVariationWide / 4, kVariationWide) /
         kVariationWide;
}

void ExpectedPlacer::renew_lease(Nanos now) {
  if (config().placers <= 1) return;
  const std::int64_t epoch = now.value / config().lease_period.value;
  if (epoch == epoch_ && leased_ranks_ == ledger().open_ranks()) return;
  epoch_ = epoch;
  leased_ranks_ = ledger().open_ranks();
  outlook()->lease(config().placers, (config().placer + epoch) % config().placers);
}

std::optional<RankId> ExpectedPlacer::settle(const Outlook::Best& best, DecodeRule rule,
                                             DecodeReason& reason) const {
  reason.rule = rule;
  if (!best.winner) return std::nullopt;
  const auto load = [](const Outlook::Pick& pick) {
    return DecodeLoad{pick.rank, pick.running, TokenCount{pick.kv}};
  };
  reason.winner = load(*best.winner);
  if (best.runner_up) reason.runner_up = load(*best.runner_up);
  reason.fitting = rule == DecodeRule::kLeastKv ? 0 : best.fitting;
  reason.expected_running_permille = best.running_permille;
  return best.winner->rank;
}

}  // namespace trimtab::policy
