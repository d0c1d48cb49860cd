#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/ids.h"
#include "policy/decode/survival.h"

namespace trimtab::policy {

/// A load as it is expected a few tokens of each request from now: a request counts with the probability that
/// it still runs then.
struct Expected {
  std::int64_t running = 0;  // in parts of SurvivalTable::kOne
  std::int64_t kv = 0;       // tokens
};

/// The expected loads of all open ranks, dense, for policies that compare what the ranks will run rather than
/// what they run (request study, 1.1 B). Kept by the ledger, one update per change of a rank; a question
/// reads every rank once, 16 bytes each.
///
/// It also knows the leases of independent placers: a rank outside the lease is chosen only when no leased
/// one has room.
class Outlook {
 public:
  explicit Outlook(std::int64_t horizon_tokens) : horizon_(horizon_tokens), survival_(horizon_tokens) {}

  struct Best {
    std::optional<model::RankId> winner, runner_up;
    std::int64_t running = 0;  // the winner's, in parts of SurvivalTable::kOne, not divided by its speed
    std::int64_t fitting = 0;
  };

  SurvivalTable& survival() { return survival_; }
  Expected of(std::int64_t age_tokens, std::int64_t tokens) const;
  /// Load that others placed: nothing is known of its ages.
  Expected of_foreign(std::int64_t running, std::int64_t kv) const;

  /// `room`: the longest request that still fits there, negative for none.
  void set(std::uint32_t slot, model::RankId rank, Expected expected, std::int64_t room, std::int64_t running,
           std::int64_t speed_permille);
  void remove(std::uint32_t slot);

  /// Share `share` of `shares` of the ranks, by place in the order of ids; rotated by the caller.
  void lease(std::int64_t shares, std::int64_t share);

  /// Among the ranks with room whose expected KV, the request included, divided by speed is at most `line`:
  /// fewest expected running per speed with the request, then least KV, then id.
  Best fewest(std::int64_t tokens, std::int64_t line) const;
  /// The same among the ranks that run (not expect) fewer than `running_max` per unit of speed, rounded up to
  /// multiples of `graph_step`.
  struct Ceiling {
    std::int64_t line = 0;
    std::int64_t running_permille = 0, graph_step = 1;
    std::int64_t running_max(std::int64_t speed_permille) const {
      const std::int64_t even = (running_permille * speed_permille + 999'999) / 1'000'000;
      return (even + graph_step - 1) / graph_step * graph_step;
    }
  };
  Best fewest_below(std::int64_t tokens, const Ceiling& ceiling) const;
  /// Is there such a rank?
  bool fits_below(std::int64_t tokens, const Ceiling& ceiling) const;
  /// The greatest expected KV per unit of speed.
  std::int64_t peak_kv() const;
  /// Among the ranks with room: least expected KV per speed, then fewest running, then id.
  Best least_kv(std::int64_t tokens) const;
  /// Over all open ranks.
  std::int64_t total_kv() const { return total_kv_; }

 private:
  struct Key {
    std::int64_t first = 0, second = 0;
    std::uint64_t order = 0;
    auto operator<=>(const Key&) const = default;
  };
  template <class Fits>
  Best scan(std::int64_t tokens, bool by_kv, const Fits& fits) const;
  Best scan(std::int64_t tokens, std::int64_t line, bool by_kv) const;
  bool below(std::uint32_t slot, std::int64_t tokens, const Ceiling& ceiling) const;
  bool leased(std::uint32_t slot) const { return leases_.empty() || leases_[slot] != 0; }

  std::int64_t horizon_;
  SurvivalTable survival_;
  std::vector<std::int64_t> running_, kv_, room_, speed_, count_;  // by slot; room_ -1: not open
  std::vector<std::uint64_t> order_;
  std::vector<std::uint8_t> open_, leases_;
  std::int64_t total_kv_ = 0;
  std::int64_t slow_or_fast_ = 0;  // open ranks of another than the nominal speed
};

}  // namespace trimtab::policy
