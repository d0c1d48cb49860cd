#include "policy/decode/policy.h"

#include <algorithm>

namespace trimtab::policy {

DecodePolicy::DecodePolicy(DecodeConfig config, DecodeLedger::Scope scope)
    : config_(std::move(config)), ledger_(scope, config_.headroom_tokens, config_.report_lifetime) {}

DecodeDecision DecodePolicy::decide(const DecodeRequest& request, Nanos now) {
  ledger_.expire(now);
  DecodeDecision decision;
  decision.reason.ranks = ledger_.totals().ranks;
  if (ledger_.totals().ranks > 0) decision.rank = choose(request, now, decision.reason);
  if (decision.rank) return decision;
  if (decision.reason.rule == DecodeRule::kHeldByCeiling) {
    decision.hold = true;
  } else if (ledger_.ranks_known() == 0) {
    decision.reason.rule = DecodeRule::kNoRanks;
  } else {
    decision.hold = ledger_.could_ever_fit(request.tokens);
    decision.reason.rule = decision.hold ? DecodeRule::kHeldNoRoom : DecodeRule::kNeverFits;
  }
  return decision;
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
