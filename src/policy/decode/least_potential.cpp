#include <algorithm>

#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"
#include "policy/decode/potential.h"

namespace trimtab::policy {
namespace {

/// **Least potential.** Each rank has a potential, steeply rising in KV and in running requests above their
/// means (potential.h); a request goes where the sum over the ranks rises least. With a window, the request
/// whose best place costs least beyond its own share of the mean goes next, so holes of every size find
/// something that fits.
///
/// *Why.* One number for both dimensions, smooth where the waterline has an edge; the same number tells which
/// move pays (migrator.h). *Source.* Own (request study, 1.1, 1.2 and 1.7). *Cost.* O(distinct counts), times
/// the window. *Weakness.* Placement alone, it is not better than the waterline; with a window and no moves
/// it loses at many ranks of small batches, since it fills every hole to the brim and long requests come
/// last.
class LeastPotential final : public DecodePolicy {
 public:
  explicit LeastPotential(DecodeConfig config)
      : DecodePolicy(std::move(config), DecodeLedger::Scope::kFleet) {}

 private:
  struct Scored {
    double rise = 0;
    RankIndex::Pick pick;
  };

  Potential potential(std::int64_t waiting_kv, std::int64_t waiting) const {
    const DecodeLedger::Totals& totals = ledger().totals();
    Potential made;
    const double speeds = static_cast<double>(totals.speed_permille) / 1000;
    made.mean_kv = std::max(1.0, static_cast<double>(totals.kv + waiting_kv) / speeds);
    made.mean_running = static_cast<double>(totals.running + waiting) / speeds;
    return made;
  }

  /// Of two ranks of one kind with equal counts the one with less KV rises less (the potential is convex), so
  /// the tops of the index's heaps are all there is to compare.
  std::pair<std::optional<Scored>, std::optional<Scored>> best_two(const Potential& potential,
                                                                   std::int64_t tokens) const {
    std::optional<Scored> first, second;
    const auto better = [](const Scored& a, const Scored& b) {
      return a.rise != b.rise ? a.rise < b.rise : a.pick.load.rank < b.pick.load.rank;
    };
    for (const auto& kind : ledger().groups().front().kinds) {
      const double speed = static_cast<double>(kind->capacity().speed_permille) / 1000;
      kind->for_each_least(tokens, [&](const RankIndex::Pick& pick) {
        const auto running = static_cast<double>(pick.load.running);
        const auto kv = static_cast<double>(pick.load.kv.value);
        const double before = potential.of(running, kv, speed);
        const double after = potential.of(running + 1, kv + static_cast<double>(tokens), speed);
        const Scored scored{after - before, pick};
        if (!first || better(scored, *first)) {
          second = first;
          first = scored;
        } else if (!second || better(scored, *second)) {
          second = scored;
        }
      });
    }
    return {first, second};
  }

  std::optional<RankId> choose(const DecodeRequest& request, Nanos /*now*/, DecodeReason& reason) override {
    const Potential made = potential(request.tokens.value, 1);
    const auto [first, second] = best_two(made, request.tokens.value);
    if (!first) return std::nullopt;
    reason.rule = DecodeRule::kLeastPotential;
    reason.mean_kv = TokenCount{static_cast<std::int64_t>(made.mean_kv)};
    reason.winner = first->pick.load;
    if (second) reason.runner_up = second->pick.load;
    reason.fitting = count_fitting(ledger().groups().front(), request.tokens);
    return first->pick.load.rank;
  }

  std::size_t choose_next(std::span<const DecodeRequest> window, Nanos /*now*/) override {
    std::int64_t mean = 0;
    for (const DecodeRequest& request : window) mean += request.tokens.value;
    mean /= static_cast<std::int64_t>(window.size());
    const Potential made = potential(mean, 1);
    std::size_t best = 0;
    double least = 0;
    bool found = false;
    for (std::size_t i = 0; i < window.size(); ++i) {
      const auto [first, second] = best_two(made, window[i].tokens.value);
      if (!first) continue;
      // The request adds its share to the mean wherever it goes; what counts is how well it fits.
      const double score =
          first->rise - made.kv_weight * static_cast<double>(window[i].tokens.value) / made.mean_kv;
      if (found && score >= least) continue;
      found = true;
      least = score;
      best = i;
    }
    return best;
  }
};

}  // namespace

std::unique_ptr<DecodePolicy> make_least_potential(const DecodeConfig& config) {
  return std::make_unique<LeastPotential>(config);
}

}  // namespace trimtab::policy
