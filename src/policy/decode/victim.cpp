#include "policy/decode/victim.h"

#include <algorithm>
#include <tuple>

namespace trimtab::policy {
namespace {

auto best_fit_key(const VictimCandidate& candidate, base::TokenCount wanted) {
  const bool enough = candidate.tokens >= wanted;
  return std::tuple(candidate.preemptions, !enough, enough ? candidate.tokens : -candidate.tokens,
                    candidate.id);
}

auto longest_output_key(const VictimCandidate& candidate) {
  return std::tuple(-candidate.generated, candidate.id);
}

}  // namespace

std::optional<DecodeVictim> choose_victim(VictimRule rule, std::span<const VictimCandidate> running,
                                          base::TokenCount wanted) {
  if (running.size() < 2) return std::nullopt;
  const auto oldest = std::min_element(running.begin(), running.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.admitted_at, a.id) < std::tuple(b.admitted_at, b.id);
  });
  const VictimCandidate* victim = nullptr;
  for (const VictimCandidate& candidate : running) {
    if (&candidate == &*oldest) continue;
    const bool sooner =
        victim == nullptr || (rule == VictimRule::kLongestOutput
                                  ? longest_output_key(candidate) < longest_output_key(*victim)
                                  : best_fit_key(candidate, wanted) < best_fit_key(*victim, wanted));
    if (sooner) victim = &candidate;
  }
  DecodeVictim chosen;
  chosen.id = victim->id;
  chosen.tokens = victim->tokens;
  chosen.generated = victim->generated;
  chosen.wanted = wanted;
  chosen.others = static_cast<std::int64_t>(running.size()) - 2;
  chosen.preempted_before = victim->preemptions;
  return chosen;
}

}  // namespace trimtab::policy
