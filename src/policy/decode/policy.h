#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "policy/decode/ledger.h"
#include "policy/decode/types.h"

namespace trimtab::policy {

/// Chooses the decode rank of each request: one placer over all ranks of its groups (independent placers herd
/// and lose 3 to 7 points). A policy is a class with one function, `choose`, in one file, and one line in
/// policies.h; the accounting, the memory rules, the reservations and the tests of all policies come with
/// this base.
///
/// Life of a request: decide -> reserve -> admitted -> grew ... -> ended. Whatever ends it (done, cancelled,
/// failed, preempted, reservation refused) is `ended`. Deterministic; ties go to the smaller id.
class DecodePolicy {
 public:
  virtual ~DecodePolicy() = default;
  DecodePolicy(const DecodePolicy&) = delete;
  DecodePolicy& operator=(const DecodePolicy&) = delete;

  /// A rank that joins starts empty. It must not be known already.
  void add_rank(RankId rank, DecodeCapacity capacity) { ledger_.add_rank(rank, capacity); }
  /// The requests that were on it, by id: their host places them again.
  std::vector<RequestId> remove_rank(RankId rank) { return ledger_.remove_rank(rank); }
  /// Closed: the rank keeps what it runs but is not chosen (drain).
  void set_open(RankId rank, bool open) { ledger_.set_open(rank, open); }

  /// Sets room aside before anything is handed over. The load counts at once. `preemptions`: how often it had
  /// to yield before; such a request is spared as long as another can yield.
  void reserve(RequestId id, RankId rank, TokenCount tokens, Nanos now, std::int32_t preemptions = 0) {
    ledger_.reserve(id, rank, tokens, now, preemptions);
  }
  /// The KV is there and the request runs. Without a reservation before it, it is booked now.
  void admitted(RequestId id, RankId rank, TokenCount tokens, Nanos now) {
    ledger_.admitted(id, rank, tokens, now);
  }
  /// `n` of its tokens streamed by. Unknown ids are ignored (a late token of a request that ended).
  void grew(RequestId id, std::int64_t n, Nanos now) { ledger_.grew(id, n, now); }
  /// Its room is free again, whatever the cause. False when it was not known.
  bool ended(RequestId id, Nanos now) { return ledger_.ended(id, now); }
  void report(const DecodeReport& report) { ledger_.report(report); }

  /// Where the request should decode. Places nothing: call `reserve` with the answer.
  DecodeDecision decide(const DecodeRequest& request, Nanos now);

  /// Memory on `rank` ran out: who yields (victim.h says why). None when it runs fewer than two requests.
  std::optional<DecodeVictim> choose_victim(RankId rank) const;

  const DecodeLedger& ledger() const { return ledger_; }
  const DecodeConfig& config() const { return config_; }

 protected:
  DecodePolicy(DecodeConfig config, DecodeLedger::Scope scope);
  /// Only called when at least one open rank has room for the request. Fills `reason` and returns the rank,
  /// or none to hold.
  virtual std::optional<RankId> choose(const DecodeRequest& request, Nanos now, DecodeReason& reason) = 0;

 private:
  DecodeConfig config_;
  DecodeLedger ledger_;
};

/// The policy that `config.policy` names. Errors: unknown name (the nearest is offered), values out of range.
base::Result<std::unique_ptr<DecodePolicy>> make_decode_policy(const DecodeConfig& config);
std::span<const std::string_view> decode_policy_names();

}  // namespace trimtab::policy
