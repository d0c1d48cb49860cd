#include <string>

#include "policy/decode/types.h"

namespace trimtab::policy {
namespace {

std::string loads(const DecodeLoad& load) {
  return "group " + std::to_string(load.rank.engine.value) + " rank " + std::to_string(load.rank.rank) +
         " (" + std::to_string(load.running) + " running, " + std::to_string(load.kv.value) + " KV tokens)";
}

std::string thousandths(std::int64_t permille) {
  const std::string cents = std::to_string(permille % 1000 / 10);
  return std::to_string(permille / 1000) + "." + (cents.size() < 2 ? "0" : "") + cents;
}

}  // namespace

std::string_view name(DecodeRule rule) {
  switch (rule) {
    case DecodeRule::kFewestBelowLine:
      return "fewest_below_line";
    case DecodeRule::kLeastKv:
      return "least_kv";
    case DecodeRule::kFewest:
      return "fewest";
    case DecodeRule::kNextInTurn:
      return "next_in_turn";
    case DecodeRule::kHeldByCeiling:
      return "held_by_ceiling";
    case DecodeRule::kHeldNoRoom:
      return "held_no_room";
    case DecodeRule::kNeverFits:
      return "never_fits";
    case DecodeRule::kNoRanks:
      return "no_ranks";
    case DecodeRule::kFewestExpected:
      return "fewest_expected";
    case DecodeRule::kLeastPotential:
      return "least_potential";
    case DecodeRule::kHeldByCount:
      return "held_by_count";
    case DecodeRule::kHeldInGroup:
      return "held_in_group";
    case DecodeRule::kMovedThere:
      return "moved_there";
  }
  return "unknown";
}

std::string describe(const DecodeDecision& decision) {
  const DecodeReason& reason = decision.reason;
  const std::string of_ranks =
      std::to_string(reason.fitting) + " ranks (of " + std::to_string(reason.ranks) + ")";
  std::string text;
  switch (reason.rule) {
    case DecodeRule::kFewestBelowLine:
      text = "fewest running of the " + of_ranks + " under the waterline " +
             std::to_string(reason.waterline.value) + " (mean KV " + std::to_string(reason.mean_kv.value) +
             ")";
      break;
    case DecodeRule::kLeastKv:
      text = reason.waterline.value > 0
                 ? "least KV: no rank stays under the waterline " + std::to_string(reason.waterline.value) +
                       " (mean KV " + std::to_string(reason.mean_kv.value) + ")"
                 : "least KV of the " + of_ranks + " with room";
      break;
    case DecodeRule::kFewest:
      text = "fewest running of the " + of_ranks + " with room";
      break;
    case DecodeRule::kNextInTurn:
      text = "next in turn of the " + of_ranks + " with room";
      break;
    case DecodeRule::kFewestExpected:
      text = "fewest expected to run soon (" + thousandths(reason.expected_running_permille) + ") of the " +
             of_ranks + " under the waterline " + std::to_string(reason.waterline.value) + " (mean KV " +
             std::to_string(reason.mean_kv.value) + ")";
      break;
    case DecodeRule::kLeastPotential:
      text = "least rise of the potential (mean KV " + std::to_string(reason.mean_kv.value) + ")";
      break;
    case DecodeRule::kMovedThere:
      text = "it was moved there";
      break;
    case DecodeRule::kHeldByCount:
      return "held: every rank with room would run more requests than its share";
    case DecodeRule::kHeldInGroup:
      return "held: the group that was chosen for it has no room";
    case DecodeRule::kHeldByCeiling:
      return "held: every rank with room would rise above the ceiling " +
             std::to_string(reason.ceiling.value);
    case DecodeRule::kHeldNoRoom:
      return "held: none of " + std::to_string(reason.ranks) + " ranks has room";
    case DecodeRule::kNeverFits:
      return "refused: longer than any decode rank could hold";
    case DecodeRule::kNoRanks:
      return "refused: no decode rank is known";
  }
  if (reason.winner) text = "decode " + loads(*reason.winner) + ": " + text;
  if (reason.runner_up) text += "; runner-up " + loads(*reason.runner_up);
  return text;
}

std::string describe(const DecodeMove& move) {
  return "request " + std::to_string(move.id.value) + " (" + std::to_string(move.tokens.value) +
         " KV tokens) moves from " + loads(move.from_load) + " to " + loads(move.to_load) +
         (move.swaps_with_next ? ", in exchange for the next" : "") + ": the potential falls from " +
         std::to_string(move.potential_before) + " to " + std::to_string(move.potential_after) + "; " +
         thousandths(move.budget_left_permille) + " moves left";
}

}  // namespace trimtab::policy
