#include <algorithm>

#include "base/check.h"
#include "cluster/machine.h"

namespace trimtab::cluster {

using model::Role;

namespace {

std::optional<RankLoad> seen(const std::optional<policy::DecodeLoad>& load) {
  if (!load) return std::nullopt;
  return RankLoad{load->rank, load->running, load->kv};
}

}  // namespace

void Machine::log_choice(Life& life, const policy::DecodeDecision& decision, TokenCount reserve) {
  const policy::DecodeReason& reason = decision.reason;
  log(life.id, [&] {
    return DecodeRecord{seen(reason.winner),
                        seen(reason.runner_up),
                        decode_->config().policy,
                        life.tokens(),
                        reserve,
                        reason.waterline,
                        reason.mean_kv,
                        reason.ceiling,
                        static_cast<std::uint32_t>(reason.fitting),
                        policy::describe(decision)};
  });
}

policy::DecodeRequest Machine::seat_request(const Life& life) const {
  // The KV at the hand-over has the token that the prefill draws to come.
  const bool held = life.seat == Seat::kWanted;
  const bool ahead = decode_->config().window > 1;
  policy::DecodeRequest request{life.id, life.tokens() + TokenCount{1},
                                held_tokens_ - (held ? life.held_kv : TokenCount{}),
                                ahead ? life.head_since.value_or(now_) : *life.wanted_since};
  request.overtaken = life.overtaken;
  request.queued = static_cast<std::int64_t>(held_.size()) - (held ? 1 : 0);
  return request;
}

policy::DecodeDecision Machine::choose_seat(const Life& life, const std::vector<RankId>& excluded) {
  for (const RankId rank : excluded) decode_->set_open(rank, false);
  policy::DecodeDecision decision = decode_->decide(seat_request(life), now_);
  for (const RankId rank : excluded) {
    if (!refused_.contains(rank)) decode_->set_open(rank, members_.open(Place::of(Role::kDecode, rank)));
  }
  return decision;
}

bool Machine::want_seat(Life& life) {
  if (life.seat == Seat::kBound) {
    if (take_bound(life)) return true;
    let_go_seat(life);
  }
  if (!life.wanted_since) life.wanted_since = now_;
  // A rank that was told to let go of the request has to answer before it can be asked for it again.
  const std::vector<RankId> excluded = unanswered(life.id);
  // With look-ahead, who waits already is looked at together with it.
  if (decode_->config().window > 1 && excluded.empty() && life.seat != Seat::kWanted &&
      held_.size() > parked_) {
    hold_seat(life, false);
    return false;
  }
  policy::DecodeDecision decision = choose_seat(life, excluded);
  if (give_up_bound(decision)) decision = choose_seat(life, excluded);
  return take_seat(life, decision, !excluded.empty());
}

TokenCount Machine::room_for(const Life& life) const {
  return life.tokens() + std::min(life.output_left(), TokenCount{config_.decode.headroom_tokens});
}

bool Machine::take_seat(Life& life, const policy::DecodeDecision& decision, bool parked) {
  const TokenCount reserve = room_for(life);
  if (!decision.rank && decision.reason.rule == policy::DecodeRule::kNeverFits) {
    log_choice(life, decision, reserve);
    if (life.generated.value > 0) {
      finish(life, model::FinishReason::kLength);
    } else {
      fail(life, base::Code::kInvalidArgument, policy::describe(decision));
    }
    return false;
  }
  if (!decision.rank) {
    if (!life.held_logged) log_choice(life, decision, reserve);
    life.held_logged = true;
    hold_seat(life, parked);
    return false;
  }
  const RequestId id = life.id;
  if (life.seat == Seat::kWanted) let_go_seat(life);
  life.held_logged = false;
  life.overtaken = 0;
  life.head_since.reset();
  log_choice(life, decision, reserve);
  life.decode = *decision.rank;
  decode_->reserve(id, life.decode, life.tokens() + TokenCount{1}, now_, life.preemptions,
                   life.generated.value > 0);
  hold(Place::of(Role::kDecode, life.decode), id);
  ask_seat(life, reserve);
  return true;
}

void Machine::ask_seat(Life& life, TokenCount reserve) {
  life.seat = Seat::kReserving;
  emit(Reserve{life.id, life.decode, reserve});
  // By our account there is room; the answer comes while the prompt is computed. Should it be no, the
  // finished KV waits in the prefill rank for the next choice, for a bounded time.
  if (life.stage == Stage::kGranted) start_prefill(life);
}

std::vector<RankId> Machine::unanswered(RequestId id) const {
  std::vector<RankId> ranks;
  if (!releases_.pending(id, Role::kDecode)) return ranks;
  for (const RankId rank : decode_->ledger().open_ranks()) {
    if (releases_.pending(id, Place::of(Role::kDecode, rank))) ranks.push_back(rank);
  }
  return ranks;
}

void Machine::quarantine(Life& life, Place place) {
  if (life.ending) return;
  const RequestId alias{alias_--};
  const bool known = decode_->leaves(life.id, alias);
  TRIMTAB_CHECK(known, "a decode place without an account");
  quarantined_[{place, life.id}] = alias;
}

RequestId Machine::account_at(Place place, RequestId id) const {
  const auto alias = quarantined_.find({place, id});
  return alias == quarantined_.end() ? id : alias->second;
}

void Machine::hold_seat(Life& life, bool parked) {
  if (life.seat == Seat::kWanted) {
    if (parked && !life.parked) ++parked_;
    if (!parked && life.parked) --parked_;
    life.parked = parked;
    return;
  }
  life.seat = Seat::kWanted;
  life.parked = parked;
  parked_ += parked ? 1 : 0;
  held_.emplace(*life.wanted_since, life.id);
  life.held_kv = life.tokens();
  held_tokens_ += life.held_kv;
}

void Machine::retry_held() {
  if (decode_->config().window > 1) {
    retry_window();
  } else {
    retry_in_order();
  }
}

// First come, first served: while the oldest finds no room the younger ones do not overtake it, or a stream
// of small requests would keep a large one out for ever.
void Machine::retry_in_order() {
  const std::vector<std::pair<Nanos, RequestId>> order(held_.begin(), held_.end());
  for (const auto& [since, id] : order) {
    Life* life = find(id);
    if (life == nullptr || life->seat != Seat::kWanted) continue;
    if (want_seat(*life) || find(id) == nullptr) continue;
    if (!life->parked) return;  // a parked one waits for one rank's answer, not for room
  }
}

// The policy picks among the oldest, and bounds how often one of them is overtaken.
void Machine::retry_window() {
  if (parked_ > 0) {
    const std::vector<std::pair<Nanos, RequestId>> order(held_.begin(), held_.end());
    for (const auto& [since, id] : order) {
      Life* life = find(id);
      if (life != nullptr && life->seat == Seat::kWanted && life->parked) want_seat(*life);
    }
  }
  while (held_.size() > parked_) {
    std::vector<policy::DecodeRequest> waiting;
    for (const auto& [since, id] : held_) {
      Life& life = lives_.at(id);
      if (life.parked) continue;
      // How long a ceiling may hold it counts from here: behind others, it was not the ceiling that held it.
      if (waiting.empty() && !life.head_since) life.head_since = now_;
      waiting.push_back(seat_request(life));
      if (waiting.size() == static_cast<std::size_t>(decode_->config().window)) break;
    }
    policy::DecodePick pick = decode_->decide_next(waiting, now_);
    if (give_up_bound(pick.decision)) pick = decode_->decide_next(waiting, now_);
    for (std::size_t i = 0; i < pick.index && pick.decision.rank; ++i) {
      ++lives_.at(waiting[i].id).overtaken;
    }
    const RequestId id = waiting[pick.index].id;
    if (!take_seat(lives_.at(id), pick.decision, false) && find(id) != nullptr) return;
  }
}

void Machine::reopen(RankId rank) {
  if (refused_.erase(rank) == 0) return;
  if (decode_->ledger().knows(rank)) decode_->set_open(rank, members_.open(Place::of(Role::kDecode, rank)));
}

void Machine::on(const Reserved& event) {
  const Place place = Place::of(Role::kDecode, event.from);
  Life* found = holder(event.id, place);
  if (found == nullptr || found->seat != Seat::kReserving) return;
  Life& life = *found;
  log(life.id, [&] { return ReservedRecord{event.from, event.granted, event.blocks_free}; });
  if (!event.granted) {
    // Our account was wrong about this rank. It is left alone until its next report has mended the account.
    unhold(place, life.id);
    decode_->ended(life.id, now_);
    decode_->set_open(event.from, false);
    refused_[event.from] = now_ + limits_.refusal_pause;
    life.seat = Seat::kNone;
    want_seat(life);
    return;
  }
  life.seat = Seat::kTarget;
  emit(SendTarget{life.id, *life.prefill, life.decode});
  extend_leases(Place::of(Role::kPrefill, *life.prefill));
}

/// The rank holds nothing of it any more (or, kBound, was never asked).
void Machine::decode_ended(Life& life) {
  unhold(Place::of(Role::kDecode, life.decode), life.id);
  decode_->ended(life.id, now_);
  bound_.erase(life.id);
  life.seat = Seat::kNone;
}

void Machine::on(const DecodeStepped& event) {
  const Place place = Place::of(Role::kDecode, event.from);
  if (!members_.heard(place)) return;
  spoke(place);
  for (const TokenReport& token : event.tokens) {
    Life* found = holder(token.id, place);
    if (found == nullptr || found->seat != Seat::kRunning) {
      // It streams on until its abort arrives, and the report below counts that: so must the account, or the
      // difference would stay as a phantom load when the rank falls idle.
      if (releases_.pending(token.id, place)) {
        const RequestId account = account_at(place, token.id);
        decode_->grew(account, token.count, now_);
        if (token.finish != model::FinishReason::kNone) decode_->ended(account, now_);
      }
      continue;
    }
    Life& life = *found;
    const auto count =
        static_cast<std::uint32_t>(std::min<std::int64_t>(token.count, life.output_left().value));
    life.generated += TokenCount{count};
    emit(Deliver{life.id, count});
    decode_->grew(life.id, token.count, now_);
    if (token.finish != model::FinishReason::kNone) {
      decode_ended(life);
      finish(life, token.finish);
    } else if (life.output_left().value <= 0) {
      finish(life, model::FinishReason::kLength);  // the rank goes on beyond its limit: it is aborted there
    }
  }
  if (event.running >= 0) {
    policy::DecodeReport report;
    report.rank = event.from;
    report.running = event.running;
    report.kv = event.kv;
    report.as_of = now_ - event.load_age;
    decode_->report(report);
  }
  reopen(event.from);
  plan_moves(event.from);
  retry_held();
  serve();
}

void Machine::on(const Preempted& event) {
  const Place place = Place::of(Role::kDecode, event.from);
  Life* found = holder(event.id, place);
  if (found == nullptr || found->seat != Seat::kRunning) return;
  Life& life = *found;
  decode_ended(life);
  ++life.preemptions;
  requeue(life, place, false, base::Code::kOverloaded, "preempted: " + event.reason);
  retry_held();
  serve();
}

/// The decode side of the request is gone without a word of its own: the rank failed it or was lost.
void Machine::seat_lost(Life& life, base::Code code, const std::string& why) {
  const Place place = Place::of(Role::kDecode, life.decode);
  const Seat seat = life.seat;
  decode_ended(life);
  switch (seat) {
    case Seat::kReserving:
      want_seat(life);  // nothing was handed over: only the choice is made again
      break;
    case Seat::kBound:
      break;  // nothing was asked of it yet: the choice is made when the prompt is due
    case Seat::kTarget:
      life.seat = Seat::kGone;
      break;
    case Seat::kRunning:
      requeue(life, place, true, code, why);
      break;
    default:
      TRIMTAB_CHECK(false, "a seat that nobody holds was lost");
  }
}

}  // namespace trimtab::cluster
