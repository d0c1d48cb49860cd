#include <algorithm>

#include "policy/decode/expected_placer.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **Waterline with two ceilings.** Over expected loads (waterline_hazard.cpp), and once the group is full
/// nobody is placed where it would make every rank wait: a request goes to a rank that it leaves below both
///
///   running requests: ceil(D * speed / sum of speeds), rounded up to the captured graph size
///   KV: 1.03 x mean KV of a rank at demand D, + half of what the tallest rank stands above that, + 1.5
///       requests' share of the mean for each place that is empty
///
/// where D are the requests that run and wait; there the fewest expected running wins, as under the line. If
/// no rank is that low, the request is held, at most `hold_max`; then the waterline places it. With a window,
/// the longest of the waiting requests that finds a place goes next: long ones fit rarely, short ones always.
///
/// *Why.* At full concurrency the next free place is milliseconds away, while a placement that lifts the
/// tallest rank costs all ranks until that request ends. Empty places cost too, one part in D each, so the
/// ceiling yields as they add up; it yields half way to the tallest rank, too, since below that nobody waits
/// longer than now. The count ceiling is what fewest-first cannot give: with D = 16 per rank it keeps
/// everyone at 16. That is also all that padding asks for: graph sizes are steps, and inside a step a request
/// more costs nothing, so with `graph_step` the ceiling rounds up to the size that the step pays for anyway.
///
/// *Source.* Own, from the request study's ceiling (1.1b), which preempted on growth and held on KV alone.
/// *Cost.* O(ranks) a choice, O(window * ranks) for the next of a window; O(1) a token. *Weakness.* The holds
/// cost waiting time for tokens per second, so nothing is held below `hold_from_running` per rank. Needs the
/// state of the moment: with several placers nobody knows D, and there waterline_hazard is better.
class WaterlineHold final : public ExpectedPlacer {
 public:
  explicit WaterlineHold(const DecodeConfig& config) : ExpectedPlacer(config) {}

 private:
  static constexpr std::int64_t kCeilingPermille = 1'030;

  /// None: this request is not held, because the group is not full, it waited long enough, or it is taller
  /// than the ceiling itself and would wait for an empty rank.
  std::optional<Outlook::Ceiling> ceiling(const DecodeRequest& request, Nanos now) const {
    const DecodeLedger::Totals& totals = ledger().totals();
    const std::int64_t waiting = 1 + request.queued;
    const std::int64_t demand = totals.running + waiting;
    if (demand * 1000 < config().hold_from_running * totals.speed_permille) return std::nullopt;
    if (now - request.waiting_since >= config().hold_max) return std::nullopt;
    const std::int64_t mean = long_run_ / 1024 * demand * 1000 / totals.speed_permille;
    const std::int64_t permille =
        config().ceiling_permille > 0 ? config().ceiling_permille : kCeilingPermille;
    const std::int64_t base = mean * permille / 1000;
    if (request.tokens.value > base) return std::nullopt;
    const std::int64_t above = std::max<std::int64_t>(0, expected().peak_kv() - base);
    return Outlook::Ceiling{base + above / 2 + 3 * waiting * mean / (2 * demand),
                            demand * 1'000'000 / totals.speed_permille, config().graph_step};
  }

  std::optional<RankId> choose(const DecodeRequest& request, Nanos now, DecodeReason& reason) override {
    renew_lease(now);
    observe_size(request);
    const std::int64_t z = line(request, reason);
    observe_mean(request);
    if (auto both = ceiling(request, now)) {
      both->line = std::min(both->line, z);
      reason.ceiling = TokenCount{both->line};
      const Outlook::Best below = expected().fewest_below(request.tokens.value, *both);
      if (below.winner) return settle(below, DecodeRule::kFewestExpected, reason);
      if (!expected().least_kv(request.tokens.value).winner) return std::nullopt;
      // Which of the two is in the way? With places under the line, it was the count.
      const bool by_kv = !expected().fewest(request.tokens.value, both->line).winner;
      reason.rule = by_kv ? DecodeRule::kHeldByCeiling : DecodeRule::kHeldByCount;
      return std::nullopt;
    }
    const Outlook::Best best = expected().fewest(request.tokens.value, z);
    if (best.winner) return settle(best, DecodeRule::kFewestExpected, reason);
    return settle(expected().least_kv(request.tokens.value), DecodeRule::kLeastKv, reason);
  }

  std::size_t choose_next(std::span<const DecodeRequest> window, Nanos now) override {
    renew_lease(now);
    // The head that is not (or no longer) held goes first.
    const auto head = ceiling(window.front(), now);
    if (!head) return 0;
    std::optional<std::size_t> longest;
    for (std::size_t i = 0; i < window.size(); ++i) {
      if (longest && window[i].tokens <= window[*longest].tokens) continue;
      if (expected().fewest_below(window[i].tokens.value, *head).winner) longest = i;
    }
    return longest.value_or(0);
  }

  /// About a thousand decisions long, in integers: every machine agrees.
  void observe_mean(const DecodeRequest& request) {
    const DecodeLedger::Totals& totals = ledger().totals();
    const std::int64_t mean = totals.running > 0 ? totals.kv / totals.running : request.tokens.value;
    long_run_ = long_run_ == 0 ? mean * 1024 : long_run_ + (mean * 1024 - long_run_) / 1024;
  }

  std::int64_t long_run_ = 0;  // KV of a running request, in 1/1,024 tokens
};

}  // namespace

std::unique_ptr<DecodePolicy> make_waterline_hold(const DecodeConfig& config) {
  return std::make_unique<WaterlineHold>(config);
}

}  // namespace trimtab::policy
