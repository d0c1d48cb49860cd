#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "policy/decode/ledger.h"
#include "policy/decode/migrator.h"
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
  /// to yield before; such a request is spared as long as another can yield. `returns`: it had a place
  /// before.
  void reserve(RequestId id, RankId rank, TokenCount tokens, Nanos now, std::int32_t preemptions = 0,
               bool returns = false) {
    ledger_.reserve(id, rank, tokens, now, preemptions, returns);
  }
  /// The KV is there and the request runs. Without a reservation before it, it is booked now. Each new
  /// request earns its part of a move; one that comes back does not.
  void admitted(RequestId id, RankId rank, TokenCount tokens, Nanos now) {
    const DecodeLedger::Request* known = ledger_.find(id);
    if (known == nullptr || !known->returns) migrator_.placed();
    ledger_.admitted(id, rank, tokens, now);
  }
  /// `n` of its tokens streamed by. Unknown ids are ignored (a late token of a request that ended).
  void grew(RequestId id, std::int64_t n, Nanos now) { ledger_.grew(id, n, now); }
  /// Its room is free again, whatever the cause. False when it was not known.
  bool ended(RequestId id, Nanos now) { return ledger_.ended(id, now); }
  void report(const DecodeReport& report) { ledger_.report(report); }
  /// A rank turned out slower or faster than it was added with.
  void set_speed(RankId rank, std::int64_t speed_permille) { ledger_.set_speed(rank, speed_permille); }

  /// Where the request should decode. Places nothing: call `reserve` with the answer.
  DecodeDecision decide(const DecodeRequest& request, Nanos now);
  /// Which of the requests that wait, given in the order of their arrival, goes next, and where. Looks at the
  /// first `window` of them; with 1, or for a policy that does not look ahead, at the first alone. A request
  /// that was overtaken 4 * window times is next whatever the policy says. A pick without a rank holds the
  /// whole queue (or, `never_fits`, refuses that request). `waiting` must not be empty.
  DecodePick decide_next(std::span<const DecodeRequest> waiting, Nanos now);
  /// Which running requests should change ranks now, within the budget (`moves_permille` and its neighbours);
  /// nothing while `move_interval` has not passed since the last plan. Any policy can be asked. It changes no
  /// account: call `moved` for each move that is carried out, before the next call.
  std::vector<DecodeMove> migrate(Nanos now);
  /// The request and its KV count on `to` from now on. False when it is not known (it ended meanwhile).
  bool moved(RequestId id, RankId to, Nanos now);
  /// The same where a request leaves its rank first and comes back through the pool: what the old rank holds
  /// counts on under `alias` until `ended(alias)`, and its room on `to` is reserved; `admitted` follows.
  /// False when it is not known.
  bool departs(RequestId id, RequestId alias, RankId to, Nanos now);
  /// The rank has been told to let go of it and it may get another place meanwhile: what is there counts on
  /// under `alias`. False when it is not known.
  bool leaves(RequestId id, RequestId alias) { return ledger_.leaves(id, alias); }

  /// Memory on `rank` ran out: who yields (victim.h says why). None when it runs fewer than two requests.
  std::optional<DecodeVictim> choose_victim(RankId rank) const;

  const DecodeLedger& ledger() const { return ledger_; }
  const DecodeConfig& config() const { return config_; }

 protected:
  DecodePolicy(DecodeConfig config, DecodeLedger::Scope scope);
  /// Over the whole fleet, with the outlook of what remains of each request (outlook.h).
  DecodePolicy(DecodeConfig config, std::unique_ptr<Outlook> outlook);
  /// Only called when at least one open rank has room for the request. Fills `reason` and returns the rank,
  /// or none to hold.
  virtual std::optional<RankId> choose(const DecodeRequest& request, Nanos now, DecodeReason& reason) = 0;
  /// Of the window (two or more requests): the index of the one that should be decided next.
  virtual std::size_t choose_next(std::span<const DecodeRequest> window, Nanos now);

  Outlook* outlook() { return ledger_.outlook(); }

 private:
  DecodeConfig config_;
  Migrator migrator_;
  DecodeLedger ledger_;
};

/// The policy that `config.policy` names. Errors: unknown name (the nearest is offered), values out of range.
base::Result<std::unique_ptr<DecodePolicy>> make_decode_policy(const DecodeConfig& config);
/// The policies' own names. `make_decode_policy` also takes the names that other engines use for the same
/// rules: decode_policy_aliases().
std::span<const std::string_view> decode_policy_names();

struct DecodePolicyAlias {
  std::string_view alias, name;
};
std::span<const DecodePolicyAlias> decode_policy_aliases();

}  // namespace trimtab::policy
