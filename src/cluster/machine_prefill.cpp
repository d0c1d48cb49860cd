#include <algorithm>

#include "base/check.h"
#include "cluster/machine.h"

namespace trimtab::cluster {

using model::Role;

void Machine::on(const Pull& event) {
  // A group that is broken or draining asks in vain; it asks again when its account changes or it joins.
  if (!members_.open(Role::kPrefill, event.engine) || silent_.contains(event.engine)) return;
  offers_.clear();
  for (const RankOffer& offer : event.ranks) offers_.push_back({offer.quota_left, offer.blocks_free});
  queue_->pull(event.engine, offers_);
  serve();
}

// While a request waits for room on the decode side, no further one is let into an engine: what cannot go on
// must not hold prefill memory, and work waits here, never inside an engine. Look-ahead lets as many wait as
// it looks at; they have a lease, and no prefill memory either.
void Machine::serve() {
  const auto window = static_cast<std::size_t>(decode_->config().window);
  bool any = false;
  while (held_.size() - parked_ < window) {
    const std::optional<policy::Grant> granted = queue_->next(now_);
    if (!granted) break;
    grant(*granted);
    any = true;
  }
  if (any && window > 1) retry_held();
  settled_ = !(any && window > 1);
}

void Machine::grant(const policy::Grant& granted) {
  Life* found = find(granted.item.id);
  TRIMTAB_CHECK(found != nullptr && found->stage == Stage::kQueued, "the queue leased what is not queued");
  Life& life = *found;
  const RankId rank{granted.engine, granted.rank};
  const Place place = Place::of(Role::kPrefill, rank);
  if (releases_.pending(life.id, place)) {
    // The rank has not answered the abort of an earlier try. The engine asks again when it has.
    queue_->nack(life.id);
    queue_->withdraw(granted.engine);
    return;
  }
  admission_.pulled(life.id);
  enter(life, Stage::kGranted);
  life.prefill = rank;
  life.batch_cap = granted.batch_cap;
  hold(place, life.id);
  log(life.id, [&] {
    return LeaseRecord{rank,
                       granted.tier,
                       granted.aged,
                       granted.queue_time,
                       granted.engine_left,
                       granted.ranks_left,
                       life.quota,
                       granted.batch_cap,
                       granted.lease_until,
                       policy::to_string(granted)};
  });
  emit(Grant{life.id, rank, life.tokens(), life.hit, life.quota, granted.item.blocks});
  encode_images(life);
  if (find(granted.item.id) == nullptr) return;  // an image that nobody can encode ended it
  // Short work starts when a decode place is in sight (want_seat starts it), long work at once.
  if (life.needs_decode() && seat_is_due(life)) {
    want_seat(life);
  } else {
    start_prefill(life);
  }
}

Nanos Machine::quota_left(const Life& life) const {
  return cost_.request(std::min(life.prefilled, life.tokens()), life.tokens());
}

bool Machine::seat_is_due(const Life& life) const {
  const Nanos budget = std::min(Nanos{config_.prefill.step_budget_ms * 1'000'000}, life.batch_cap);
  if (quota_left(life).value > budget.value * limits_.reserve_ahead_steps) return false;
  // A budget of attention time alone may be larger than what the token limit lets a step take.
  const std::int64_t tokens = (life.tokens() - life.prefilled).value;
  return tokens <= config_.prefill.chunk_tokens_max * limits_.reserve_ahead_steps;
}

void Machine::start_prefill(Life& life) {
  TRIMTAB_CHECK(life.stage == Stage::kGranted && life.prefill);
  enter(life, Stage::kPrefilling);
  queue_->extend(life.id, now_);  // the rank's time starts now
  emit(StartPrefill{life.id, *life.prefill, life.tokens(), life.hit, life.quota, life.batch_cap,
                    life.needs_decode()});
  send_ready_images(life);
}

void Machine::on(const PrefillStepped& event) {
  const Place place = Place::of(Role::kPrefill, event.from);
  if (!members_.heard(place)) return;
  spoke(place);
  extend_leases(place);  // a step is a sign of life for everything that waits in the rank's FIFO
  for (const ChunkReport& chunk : event.chunks) {
    Life* life = holder(chunk.id, place);
    if (life == nullptr || life->stage != Stage::kPrefilling) continue;
    life->prefilled = std::max(life->prefilled, std::min(chunk.computed + chunk.tokens, life->tokens()));
    if (event.predicted.value > 0) {
      const auto share =
          static_cast<__int128>(event.actual.value) * chunk.predicted.value / event.predicted.value;
      life->spent += Nanos{static_cast<std::int64_t>(share)};
    }
    log(life->id, [&] {
      return ChunkRecord{event.from, event.step,   chunk.tokens,    chunk.computed, chunk.predicted,
                         event.vote, event.budget, event.predicted, event.actual};
    });
    if (!life->needs_decode()) continue;
    if (life->prefilled == life->tokens() && life->seat != Seat::kTarget) wait_for_target(*life);
    const bool unasked = life->seat == Seat::kNone || life->seat == Seat::kBound;
    if (unasked && seat_is_due(*life)) {
      settled_ = false;
      want_seat(*life);
    }
  }
}

/// The prompt is computed and its KV sits in the prefill rank. That is meant to last for a message's way, not
/// for a queue's: beyond `computed_hold` the memory is given back, and the pool's blocks are what is left to
/// go on from.
void Machine::wait_for_target(Life& life) {
  life.computed_until = now_ + limits_.computed_hold;
  computed_.emplace(life.computed_until, life.id);
}

void Machine::give_up_waiting() {
  while (!computed_.empty() && computed_.begin()->first <= now_) {
    settled_ = false;
    Life& life = lives_.at(computed_.begin()->second);
    computed_.erase(computed_.begin());
    if (life.seat == Seat::kTarget || life.seat == Seat::kGone) continue;  // the hand-over is under way
    const Place place = Place::of(Role::kPrefill, *life.prefill);
    let_go_prefill(life);
    let_go_seat(life);
    requeue(life, place, false, base::Code::kOverloaded,
            "no decode place came in time: its prefill memory is given back, its blocks are in the pool");
  }
}

/// The rank has let go of it by itself.
void Machine::prefill_ended(Life& life) {
  unhold(Place::of(Role::kPrefill, *life.prefill), life.id);
  queue_->ack(life.id);
  computed_.erase({life.computed_until, life.id});
  life.prefill.reset();
}

void Machine::on(const PrefillDone& event) {
  const Place place = Place::of(Role::kPrefill, event.from);
  Life* found = holder(event.id, place);
  if (found == nullptr || found->stage != Stage::kPrefilling) return;
  Life& life = *found;
  log(life.id, [&] {
    return PrefillDoneRecord{event.from, event.hit, event.computed, event.handed, life.quota, life.spent};
  });
  prefill_ended(life);
  drop_ready_images(life);
  life.computed += event.computed;
  life.generated += TokenCount{1};
  emit(Deliver{life.id});
  const bool ended = event.finish != model::FinishReason::kNone || life.output_left().value <= 0;
  if (ended) {
    finish(life, event.finish == model::FinishReason::kStop ? event.finish : model::FinishReason::kLength);
  } else if (event.handed && life.seat == Seat::kTarget) {
    enter(life, Stage::kDecoding);
    life.seat = Seat::kRunning;
    decode_->admitted(life.id, life.decode, life.tokens(), now_);
    log(life.id, [&] { return DecodeStartRecord{life.decode, life.tokens(), life.output_left()}; });
    emit(StartDecode{life.id, life.decode, life.output_left()});
  } else {
    const char* why = life.seat == Seat::kGone ? "its decode group was lost during the hand-over"
                                               : "nothing was handed over; its blocks are in the pool";
    let_go_seat(life);
    requeue(life, place, false, base::Code::kUnavailable, why);
  }
  retry_held();
  serve();
}

/// The rank cannot go on with it and holds nothing of it any more (it said so, or it is gone).
void Machine::prefill_lost(Life& life, Place place, base::Code code, const std::string& why) {
  prefill_ended(life);
  let_go_seat(life);
  requeue(life, place, true, code, why);
}

/// The rank's time runs anew for all that it has: it works, or what it waited for has just been sent.
void Machine::extend_leases(Place place) {
  for (const RequestId id : holdings_[members_.index(place)]) queue_->extend(id, now_);
}

/// A sign of life. What an engine says changes its account, so its next pull follows at once.
void Machine::spoke(Place place) {
  ++reports_[members_.index(place)];
  if (place.role == Role::kPrefill) silent_.erase(place.engine);
}

// An engine that is silent for a lease may be dead with its connection open. What waits for someone else (an
// encoder, a decode place) is no fault of the engine's, nor is what stands behind such a request.
void Machine::expire_leases() {
  if (queue_->next_event(now_) > now_) return;
  settled_ = false;
  for (std::size_t at = 0; at < members_.places(Role::kPrefill); ++at) {
    const std::set<RequestId>& ids = holdings_[at];
    const bool waits = std::any_of(ids.begin(), ids.end(), [this](RequestId id) {
      const Life& life = lives_.at(id);
      const auto awaited = [&life](const ImageLife& image) {
        return life.needs(image) && image.stage != ImageStage::kSent;
      };
      const bool seatless = life.prefilled == life.tokens() && life.seat != Seat::kTarget;
      return life.stage == Stage::kGranted || seatless ||
             std::any_of(life.images.begin(), life.images.end(), awaited);
    });
    for (const RequestId id : ids) {
      if (waits) queue_->extend(id, now_);
    }
  }
  for (const policy::Returned& returned : queue_->expire(now_)) {
    queue_->ack(returned.item.id);  // it comes back through the match: the pool may have more of it by now
    queue_->withdraw(returned.engine);
    silent_.insert(returned.engine);
    Life* life = find(returned.item.id);
    if (life == nullptr || !life->prefill) continue;
    const Place place = Place::of(Role::kPrefill, *life->prefill);
    let_go_prefill(*life);
    let_go_seat(*life);
    requeue(*life, place, true, base::Code::kUnavailable, "the engine was silent for a whole lease");
  }
}

}  // namespace trimtab::cluster
