#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "policy/decode/ledger.h"
#include "policy/decode/potential.h"
#include "policy/decode/types.h"

namespace trimtab::policy {

/// **Rate-limited migration.** A placement is a guess about what ends when; a few moves a second repair what
/// luck spoiled. Every `move_interval` the rank a with the greatest potential is looked at: of all its
/// requests and the 6 ranks of least potential, the move a -> b, or the swap with a request of b, that lowers
/// the sum of both potentials most (a swap counts half, it travels twice). It is proposed when the fall
/// exceeds `kCost`, within the budget.
///
/// *Source.* Own (request study, 1.2 and 1.7). *Cost.* O(ranks + running^2 * 6) a plan. *Weakness.* One pair
/// a plan: of two bad ranks the second waits. The move's cost to the request (a few lost steps) is one
/// constant.
class Migrator {
 public:
  explicit Migrator(const DecodeConfig& config) : config_(config) {}

  /// A request was placed: the budget grows.
  void placed();
  /// A move is carried out: the budget shrinks, the request rests.
  void moved(RequestId id, TokenCount tokens, Nanos now);
  std::vector<DecodeMove> plan(const DecodeLedger& ledger, Nanos now);

 private:
  struct Rank;
  struct Choice;
  bool rests(RequestId id, Nanos now) const;
  void refill(Nanos now);
  void look_at(const Rank& from, const Rank& to, const std::vector<DecodeLedger::Request>& leaving,
               const std::vector<DecodeLedger::Request>& coming, const Potential& potential, Nanos now,
               Choice& best) const;

  DecodeConfig config_;
  std::int64_t budget_permille_ = 0;  // of moves; at most kBurst moves
  std::int64_t tokens_left_ = 0;      // of travelling KV
  Nanos refilled_at_{INT64_MIN};
  Nanos planned_at_{INT64_MIN};
  std::deque<std::pair<Nanos, RequestId>> moves_;  // that still rest, oldest first
  std::unordered_map<RequestId, Nanos> moved_at_;  // looked up, never iterated
};

}  // namespace trimtab::policy
