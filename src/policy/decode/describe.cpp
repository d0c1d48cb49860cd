#include <string>

#include "policy/decode/types.h"

namespace trimtab::policy {
namespace {

std::string loads(const DecodeLoad& load) {
  return "group " + std::to_string(load.rank.engine.value) + " rank " + std::to_string(load.rank.rank) +
         " (" + std::to_string(load.running) + " running, " + std::to_string(load.kv.value) + " KV tokens)";
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

}  // namespace trimtab::policy
