#include "policy/decode/policy.h"

#include <algorithm>
#include <tuple>

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
  const std::vector<DecodeLedger::Request> requests = ledger_.requests(rank);
  std::int64_t running = 0;
  for (const auto& request : requests) running += request.running ? 1 : 0;
  if (running < 2) return std::nullopt;

  // The oldest stays, so that the rank always finishes something and no set of requests evicts each other for
  // ever. Among the others those that yielded least often go first.
  const auto oldest = std::min_element(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
    return std::tuple(!a.running, a.admitted_at, a.id) < std::tuple(!b.running, b.admitted_at, b.id);
  });
  // Room for every remaining request to grow by the headroom again.
  const std::int64_t free = ledger_.free_blocks(rank) * model::kBlockTokens;
  const std::int64_t wanted = std::max<std::int64_t>(1, (running - 1) * config_.headroom_tokens - free);
  const auto key = [&](const DecodeLedger::Request& r) {
    const std::int64_t generated = (r.tokens - r.placed_tokens).value;
    const bool enough = r.tokens.value >= wanted;
    if (config_.victim == VictimRule::kLongestOutput)
      return std::tuple(std::int32_t{0}, false, -generated, r.id.value);
    return std::tuple(r.preemptions, !enough, enough ? r.tokens.value : -r.tokens.value, r.id.value);
  };
  const DecodeLedger::Request* victim = nullptr;
  for (const auto& request : requests) {
    if (!request.running || &request == &*oldest) continue;
    if (victim == nullptr || key(request) < key(*victim)) victim = &request;
  }
  DecodeVictim chosen;
  chosen.id = victim->id;
  chosen.tokens = victim->tokens;
  chosen.generated = victim->tokens - victim->placed_tokens;
  chosen.wanted = TokenCount{wanted};
  chosen.others = running - 2;
  chosen.preempted_before = victim->preemptions;
  return chosen;
}

}  // namespace trimtab::policy
