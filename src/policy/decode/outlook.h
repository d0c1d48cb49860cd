#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "model/ids.h"
#include "policy/decode/outlook_scan.h"
#include "policy/decode/survival.h"

namespace trimtab::policy {

/// A load as it is expected a few tokens of each request from now: a request counts with the probability that
/// it still runs then.
struct Expected {
  std::int64_t running = 0;  // in parts of SurvivalTable::kOne
  std::int64_t kv = 0;       // tokens
};

/// The expected loads of all open ranks, for policies that compare what the ranks will run rather than what
/// they run (request study, 1.1 B). Kept by the ledger, one update per change of a rank; a question sweeps
/// all ranks, 20 bytes each, once per distinct speed.
///
/// It also knows the leases of independent placers: a rank outside the lease is chosen only when no leased
/// one will do.
class Outlook {
 public:
  explicit Outlook(std::int64_t horizon_tokens) : survival_(horizon_tokens) {}

  struct Pick {
    model::RankId rank;
    std::int64_t running = 0, kv = 0;  // now, not expected
  };
  struct Best {
    std::optional<Pick> winner, runner_up;
    std::int64_t running_permille = 0;  // expected of the winner
    std::int64_t fitting = 0;
  };

  SurvivalTable& survival() { return survival_; }
  Expected of(std::int64_t age_tokens, std::int64_t tokens) const;
  /// Load that others placed: nothing is known of its ages.
  Expected of_foreign(std::int64_t running, std::int64_t kv) const;

  struct State {
    Expected expected;
    std::int64_t room = -1;            // the longest request that still fits there; negative: none
    std::int64_t running = 0, kv = 0;  // now
    std::int64_t speed_permille = 1000;
  };
  /// The rank is open and stands so.
  void set(model::RankId rank, const State& state);
  /// It is closed or gone.
  void remove(model::RankId rank);

  /// Share `share` of `shares` of the open ranks, by place in the order of ids; rotated by the caller.
  void lease(std::int64_t shares, std::int64_t share);

  /// Among the ranks with room whose expected KV, the request included, divided by speed is at most `line`:
  /// fewest expected running per speed with the request, then least KV, then id.
  Best fewest(std::int64_t tokens, std::int64_t line) const;
  /// The same among the ranks that run (not expect) fewer than `running_max` per unit of speed, rounded up to
  /// multiples of `graph_step`.
  struct Ceiling {
    std::int64_t line = 0;
    std::int64_t running_permille = 0, graph_step = 1;
    std::int64_t running_max(std::int64_t speed_permille) const;
  };
  Best fewest_below(std::int64_t tokens, const Ceiling& ceiling) const;
  /// Among the ranks with room: least expected KV per speed with the request, then fewest running, then id.
  Best least_kv(std::int64_t tokens) const;
  /// The greatest expected KV per unit of speed.
  std::int64_t peak_kv() const;
  /// Over all open ranks.
  std::int64_t total_kv() const { return total_kv_; }

 private:
  struct Limits {
    std::int64_t line;
    const Ceiling* ceiling;  // null: any count
    bool by_kv;
  };
  struct Candidate;
  Best best_of(std::int64_t tokens, const Limits& limits) const;
  Best best_of(std::int64_t tokens, const Limits& limits, bool leased) const;
  void leave(std::size_t position);
  Pick pick(std::size_t position) const {
    return {ids_[position], ranks_.count[position], kv_now_[position]};
  }

  SurvivalTable survival_;
  std::vector<model::RankId> ids_;  // sorted
  std::vector<std::uint8_t> open_, leased_;
  std::vector<std::int64_t> kv_now_;
  DenseRanks ranks_;                             // by place in ids_
  std::map<std::int32_t, std::int64_t> speeds_;  // distinct speeds of open ranks, and how many have it
  bool leases_ = false;
  std::int64_t total_kv_ = 0;
};

}  // namespace trimtab::policy
