// What every registered policy owes its hosts, whatever the order of events; a new policy is tested by its
// registry line.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "base/prng.h"
#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

std::unique_ptr<DecodePolicy> make(std::string_view name) {
  DecodeConfig config;
  config.policy = name;
  return std::move(*make_decode_policy(config));
}

constexpr RankId rank_id(std::uint32_t n) { return {model::EngineId{n / 3}, n % 3}; }

/// Plays random events against a policy and a plain account of them.
class Play {
 public:
  // The published queues per group keep a request waiting for its group; all others conserve work.
  Play(std::string_view policy, std::uint64_t seed)
      : placer_(make(policy)), waits_for_group_(policy == "dualpath_queues"), prng_(seed) {
    for (std::uint32_t n = 0; n < 6; ++n) join(n);
  }
  void step() {
    now_ += Nanos{1};
    switch (prng_.below(10)) {
      case 0:
        toggle_rank();
        break;
      case 1:
        close_or_open();
        break;
      case 2:
      case 3:
        end();
        break;
      case 4:
      case 5:
        grow();
        break;
      default:
        place();
    }
    check();
  }
  void drain() {
    while (!running_.empty()) {
      RC_ASSERT(placer_->ended(running_.begin()->first, now_));
      running_.erase(running_.begin());
    }
    check();
    RC_ASSERT(placer_->ledger().requests_known() == 0u);
    RC_ASSERT(placer_->ledger().totals().kv == 0);
    RC_ASSERT(placer_->ledger().totals().running == 0);
  }
  const std::vector<std::string>& decisions() const { return decisions_; }

 private:
  struct Known {
    DecodeCapacity capacity;
    bool open = true;
  };
  void join(std::uint32_t n) {
    // Two kinds, so that indexes of both and speeds are exercised.
    const DecodeCapacity capacity{TokenCount{n % 2 == 0 ? 20'000 : 40'000}, 5, n % 2 == 0 ? 1000 : 700};
    placer_->add_rank(rank_id(n), capacity);
    ranks_[rank_id(n)] = {capacity, true};
  }
  void toggle_rank() {
    const auto n = static_cast<std::uint32_t>(prng_.below(6));
    if (!ranks_.contains(rank_id(n))) return join(n);
    ranks_.erase(rank_id(n));
    std::vector<RequestId> expected;
    for (const auto& [id, place] : running_)
      if (place.first == rank_id(n)) expected.push_back(id);
    RC_ASSERT(placer_->remove_rank(rank_id(n)) == expected);
    for (const RequestId id : expected) running_.erase(id);
  }
  void close_or_open() {
    const RankId rank = rank_id(static_cast<std::uint32_t>(prng_.below(6)));
    const auto known = ranks_.find(rank);
    if (known == ranks_.end()) return;
    known->second.open = !known->second.open;
    placer_->set_open(rank, known->second.open);
  }
  auto any_running() { return std::next(running_.begin(), static_cast<long>(prng_.below(running_.size()))); }
  void end() {
    if (running_.empty()) return;
    const auto chosen = any_running();
    RC_ASSERT(placer_->ended(chosen->first, now_));
    RC_ASSERT(!placer_->ended(chosen->first, now_));
    running_.erase(chosen);
  }
  void grow() {
    if (running_.empty()) return;
    const auto chosen = any_running();
    const auto n = static_cast<std::int64_t>(prng_.below(300));
    placer_->grew(chosen->first, n, now_);
    chosen->second.second += n;
  }
  DecodeLoad sum(RankId rank) const {
    DecodeLoad load{rank, 0, TokenCount{0}};
    for (const auto& [id, place] : running_) {
      if (place.first != rank) continue;
      load.running += 1;
      load.kv += TokenCount{place.second};
    }
    return load;
  }
  bool has_room(RankId rank, std::int64_t tokens) const {
    const DecodeLoad load = sum(rank);
    const Known& known = ranks_.at(rank);
    return known.open && load.running < known.capacity.max_running &&
           load.kv.value + tokens + 128 * (load.running + 1) <= known.capacity.kv.value;
  }
  void place() {
    const auto length = static_cast<std::int64_t>(1 + prng_.below(prng_.below(4) == 0 ? 45'000 : 4'000));
    const RequestId id{next_++};
    const DecodeDecision decision = placer_->decide(
        {id, TokenCount{length}, TokenCount{static_cast<std::int64_t>(prng_.below(9'000))}, now_}, now_);
    decisions_.push_back(describe(decision));
    std::int64_t with_room = 0;
    bool ever = false;
    for (const auto& [rank, known] : ranks_) {
      with_room += has_room(rank, length) ? 1 : 0;
      ever = ever || length + 128 <= known.capacity.kv.value;
    }
    // Work conserving: a place is given exactly when there is one; otherwise the answer says why.
    RC_ASSERT(decision.rank.has_value() == (with_room > 0) || waits_for_group_);
    RC_ASSERT(decision.hold == (!decision.rank && ever));
    RC_ASSERT(decision.reason.fitting <= with_room);
    if (decision.reason.rule == DecodeRule::kHeldInGroup) {
      RC_ASSERT(waits_for_group_ && !decision.rank);
      return;
    }
    if (!decision.rank) {
      RC_ASSERT(decision.reason.rule == (ranks_.empty() ? DecodeRule::kNoRanks
                                         : ever         ? DecodeRule::kHeldNoRoom
                                                        : DecodeRule::kNeverFits));
      return;
    }
    RC_ASSERT(has_room(*decision.rank, length));
    RC_ASSERT(*decision.reason.winner == sum(*decision.rank));
    // The runner-up is there whenever a second rank is, is another rank, has room, and its load is true.
    // (DualPath names the runner-up of the group it chose.)
    if (decision.reason.runner_up) {
      RC_ASSERT(decision.reason.runner_up->rank != *decision.rank);
      RC_ASSERT(has_room(decision.reason.runner_up->rank, length));
      RC_ASSERT(*decision.reason.runner_up == sum(decision.reason.runner_up->rank));
    }
    if (prng_.below(2) == 0) {
      placer_->reserve(id, *decision.rank, TokenCount{length}, now_);
      if (prng_.below(2) == 0) placer_->admitted(id, *decision.rank, TokenCount{length}, now_);
    } else {
      placer_->admitted(id, *decision.rank, TokenCount{length}, now_);
    }
    running_[id] = {*decision.rank, length};
  }
  void check() const {
    std::int64_t kv = 0, running = 0;
    for (const auto& [rank, known] : ranks_) {
      const DecodeLoad load = sum(rank);
      RC_ASSERT(placer_->ledger().load(rank) == load);
      if (!known.open) continue;
      kv += load.kv.value;
      running += load.running;
    }
    RC_ASSERT(placer_->ledger().totals().kv == kv);
    RC_ASSERT(placer_->ledger().totals().running == running);
  }

  std::unique_ptr<DecodePolicy> placer_;
  bool waits_for_group_;
  base::Prng prng_;
  Nanos now_;
  std::uint64_t next_ = 1;
  std::map<RankId, Known> ranks_;
  std::map<RequestId, std::pair<RankId, std::int64_t>> running_;
  std::vector<std::string> decisions_;
};

RC_GTEST_PROP(DecodePolicies, KeepTrueAccountsAndPlaceWhereThereIsRoom, (std::uint64_t seed)) {
  for (const std::string_view name : decode_policy_names()) {
    Play play(name, seed);
    for (int i = 0; i < 150; ++i) play.step();
    play.drain();
  }
}

RC_GTEST_PROP(DecodePolicies, TheSameEventsGiveTheSameDecisions, (std::uint64_t seed)) {
  for (const std::string_view name : decode_policy_names()) {
    Play first(name, seed), second(name, seed);
    for (int i = 0; i < 100; ++i) {
      first.step();
      second.step();
    }
    RC_ASSERT(first.decisions() == second.decisions());
  }
}

}  // namespace
}  // namespace trimtab::policy
