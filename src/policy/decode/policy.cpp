#include "policy/decode/policy.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {

DecodePolicy::DecodePolicy(DecodeConfig config, DecodeLedger::Scope scope)
    : config_(std::move(config)),
      migrator_(config_),
      ledger_(scope, config_.headroom_tokens, config_.report_lifetime) {}

DecodePolicy::DecodePolicy(DecodeConfig config, std::unique_ptr<Outlook> outlook)
    : config_(std::move(config)),
      migrator_(config_),
      ledger_(DecodeLedger::Scope::kFleet, config_.headroom_tokens, config_.report_lifetime,
              std::move(outlook)) {}

DecodeDecision DecodePolicy::decide(const DecodeRequest& request, Nanos now) {
  ledger_.expire(now);
  DecodeDecision decision;
  decision.reason.ranks = ledger_.totals().ranks;
  if (ledger_.totals().ranks > 0) decision.rank = choose(request, now, decision.reason);
  if (decision.rank) return decision;
  const DecodeRule rule = decision.reason.rule;
  if (rule == DecodeRule::kHeldByCeiling || rule == DecodeRule::kHeldByCount ||
      rule == DecodeRule::kHeldInGroup) {
    decision.hold = true;
  } else if (ledger_.ranks_known() == 0) {
    decision.reason.rule = DecodeRule::kNoRanks;
  } else {
    decision.hold = ledger_.could_ever_fit(request.tokens);
    decision.reason.rule = decision.hold ? DecodeRule::kHeldNoRoom : DecodeRule::kNeverFits;
  }
  return decision;
}

DecodePick DecodePolicy::decide_next(std::span<const DecodeRequest> waiting, Nanos now) {
  TRIMTAB_CHECK(!waiting.empty(), "no request waits");
  const auto window = static_cast<std::size_t>(config_.window);
  DecodePick pick;
  const std::span<const DecodeRequest> seen = waiting.first(std::min(window, waiting.size()));
  if (seen.size() > 1 && ledger_.totals().ranks > 0 && seen.front().overtaken < 4 * config_.window)
    pick.index = choose_next(seen, now);
  // The one that was looked for may be the one without a place: then the head says why it waits.
  pick.decision = decide(waiting[pick.index], now);
  if (!pick.decision.rank && pick.index > 0) pick = {0, decide(waiting.front(), now)};
  return pick;
}

std::size_t DecodePolicy::choose_next(std::span<const DecodeRequest> /*window*/, Nanos /*now*/) { return 0; }

std::vector<DecodeMove> DecodePolicy::migrate(Nanos now) {
  ledger_.expire(now);
  return migrator_.plan(ledger_, now);
}

bool DecodePolicy::moved(RequestId id, RankId to, Nanos now) {
  const DecodeLedger::Request* request = ledger_.find(id);
  if (request == nullptr) return false;
  migrator_.moved(id, request->tokens, now);
  return ledger_.moved(id, to, now);
}

bool DecodePolicy::departs(RequestId id, RequestId alias, RankId to, Nanos now) {
  const DecodeLedger::Request* request = ledger_.find(id);
  if (request == nullptr) return false;
  migrator_.moved(id, request->tokens, now);
  return ledger_.departs(id, alias, to);
}

std::optional<DecodeVictim> DecodePolicy::choose_victim(RankId rank) const {
  std::vector<VictimCandidate> running;
  for (const DecodeLedger::Request& request : ledger_.requests(rank)) {
    // A reservation has nothing to give back to the rank's step.
    if (!request.running) continue;
    running.push_back({request.id, request.tokens, request.tokens - request.placed_tokens,
                       request.admitted_at, request.preemptions});
  }
  if (running.empty()) return std::nullopt;
  // Room for every remaining request to grow by the headroom again, so that the next victim is not due at
  // once.
  const std::int64_t free = ledger_.free_blocks(rank) * model::kBlockTokens;
  const auto others = static_cast<std::int64_t>(running.size()) - 1;
  const std::int64_t wanted = std::max<std::int64_t>(1, others * config_.headroom_tokens - free);
  return policy::choose_victim(config_.victim, running, TokenCount{wanted});
}

}  // namespace trimtab::policy
