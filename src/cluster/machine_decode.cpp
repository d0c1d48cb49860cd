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

bool Machine::want_seat(Life& life) {
  const RequestId id = life.id;
  if (!life.wanted_since) life.wanted_since = now_;
  // The KV at the hand-over has the token that the prefill draws to come.
  const TokenCount kv = life.tokens() + TokenCount{1};
  const TokenCount queued = held_tokens_ - (life.seat == Seat::kWanted ? life.held_kv : TokenCount{});
  // A rank that was told to let go of the request has to answer before it can be asked for it again.
  const std::vector<RankId> excluded = unanswered(id);
  for (const RankId rank : excluded) decode_->set_open(rank, false);
  const policy::DecodeDecision decision = decode_->decide({id, kv, queued, *life.wanted_since}, now_);
  for (const RankId rank : excluded) {
    if (!refused_.contains(rank)) decode_->set_open(rank, members_.open(Place::of(Role::kDecode, rank)));
  }
  const TokenCount growth = std::min(life.output_left(), TokenCount{config_.decode.headroom_tokens});
  const TokenCount reserve = life.tokens() + growth;
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
    hold_seat(life, !excluded.empty());
    return false;
  }
  if (life.seat == Seat::kWanted) let_go_seat(life);
  life.held_logged = false;
  log_choice(life, decision, reserve);
  life.seat = Seat::kReserving;
  life.decode = *decision.rank;
  decode_->reserve(id, life.decode, kv, now_, life.preemptions);
  hold(Place::of(Role::kDecode, life.decode), id);
  emit(Reserve{id, life.decode, reserve});
  // By our account there is room; the answer comes while the prompt is computed. Should it be no, the
  // finished KV waits in the prefill rank for the next choice, for a bounded time.
  if (life.stage == Stage::kGranted) start_prefill(life);
  return true;
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
  decode_->ended(life.id, now_);
  decode_->reserve(alias, place.rank_id(), life.tokens() + TokenCount{1}, now_);
  quarantined_[{place, life.id}] = alias;
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

// First come, first served: while the oldest finds no room the younger ones do not overtake it, or a stream
// of small requests would keep a large one out for ever.
void Machine::retry_held() {
  const std::vector<std::pair<Nanos, RequestId>> order(held_.begin(), held_.end());
  for (const auto& [since, id] : order) {
    Life* life = find(id);
    if (life == nullptr || life->seat != Seat::kWanted) continue;
    if (want_seat(*life) || find(id) == nullptr) continue;
    if (!life->parked) return;  // a parked one waits for one rank's answer, not for room
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

/// The rank holds nothing of it any more.
void Machine::decode_ended(Life& life) {
  unhold(Place::of(Role::kDecode, life.decode), life.id);
  decode_->ended(life.id, now_);
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
        decode_->grew(token.id, token.count, now_);
        if (token.finish != model::FinishReason::kNone) decode_->ended(token.id, now_);
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
