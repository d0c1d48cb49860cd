#include "cluster/machine.h"

#include <algorithm>

#include "base/check.h"
#include "model/decode_speed.h"

namespace trimtab::cluster {

using model::Role;

Machine::Machine(const model::ClusterConfig& config, const model::Profile& profile, Parts parts)
    : config_(config),
      cost_(profile.cost, config.prefill.quota_scope),
      queue_(std::move(parts.queue)),
      decode_(std::move(parts.decode)),
      vision_(std::move(parts.vision)),
      admission_(policy::admission_config(config.gateway)),
      allocator_(queue_->tiers()),
      members_(config),
      holdings_(members_.places()),
      reports_(members_.places()),
      demand_(queue_->tiers()) {}

void Machine::step(const Event& event, Nanos now, std::vector<Action>& out) {
  TRIMTAB_CHECK(now >= now_,
                "time went back from " + std::to_string(now_.value) + " to " + std::to_string(now.value));
  now_ = now;
  out_ = &out;
  // A host that changed the queue behind the machine says so by a Timer.
  if (std::holds_alternative<Timer>(event)) settled_ = false;
  on_time();
  std::visit([this](const auto& one) { on(one); }, event);
  // These say themselves whether they left something to serve; after all others one looks.
  if (!std::holds_alternative<PrefillStepped>(event) && !std::holds_alternative<DecodeStepped>(event) &&
      !std::holds_alternative<Pull>(event)) {
    settled_ = false;
  }
  set_timer();
  out_ = nullptr;
}

const Life* Machine::find(RequestId id) const {
  const auto found = lives_.find(id);
  return found == lives_.end() ? nullptr : &found->second;
}

Life* Machine::find(RequestId id) { return const_cast<Life*>(std::as_const(*this).find(id)); }

Life* Machine::holder(RequestId id, Place place) {
  if (!members_.heard(place) || releases_.pending(id, place)) return nullptr;
  return holdings_[members_.index(place)].contains(id) ? find(id) : nullptr;
}

void Machine::enter(Life& life, Stage stage) {
  --stages_[static_cast<std::size_t>(life.stage)];
  ++stages_[static_cast<std::size_t>(stage)];
  life.stage = stage;
}

void Machine::hold(Place place, RequestId id) { holdings_[members_.index(place)].insert(id); }

void Machine::unhold(Place place, RequestId id) { holdings_[members_.index(place)].erase(id); }

// Everything that is due, before the event that found it so. Mostly nothing is, and then the last serve()
// left nothing that this one could find.
void Machine::on_time() {
  const bool due = !settled_ || queue_due_ <= now_;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    Life& life = lives_.at(deadlines_.begin()->second);
    settled_ = false;
    fail(life, base::Code::kDeadlineExceeded,
         "no complete answer within " + std::to_string((life.deadline - life.arrival).value / 1'000'000) +
             " ms; the request was " + std::string(name(life.stage)));
  }
  if (due) expire_leases();
  give_up_waiting();
  for (auto pause = refused_.begin(); pause != refused_.end();) {
    const auto next = std::next(pause);
    if (pause->second <= now_) {
      settled_ = false;
      reopen(pause->first);
    }
    pause = next;
  }
  if (now_ >= round_ends_) {
    std::vector<Nanos> demand = queue_->close_round();
    round_ends_ = now_ + Nanos{config_.prefill.allocation_round_ms * 1'000'000};
    // A silent round says nothing about the next one: the engines stay where they are.
    if (std::any_of(demand.begin(), demand.end(), [](Nanos quota) { return quota.value > 0; })) {
      demand_ = std::move(demand);
      allocate(false);
    }
    settled_ = false;
  }
  if (settled_ && !due && held_.empty()) return;
  retry_held();
  serve();
}

void Machine::on(const Timer&) {}

Nanos Machine::next_instant() {
  queue_due_ = now_;
  if (lives_.empty()) return base::kForever;
  queue_due_ = queue_->next_event(now_);
  Nanos next = std::min(round_ends_, queue_due_);
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!computed_.empty()) next = std::min(next, computed_.begin()->first);
  for (const auto& [rank, until] : refused_) next = std::min(next, until);
  // A hold below the KV ceiling ends by itself; the policy knows when, asking again is cheap.
  if (!held_.empty()) next = std::min(next, now_ + decode_->config().hold_max);
  return std::max(next, now_ + Nanos{1'000'000});
}

void Machine::set_timer() {
  const Nanos next = next_instant();
  // An earlier timer that is still to come is kept: it finds nothing to do and sets the next one.
  if (next == base::kForever || (timer_ && *timer_ > now_ && *timer_ <= next)) return;
  timer_ = next;
  emit(SetTimer{next});
}

void Machine::allocate(bool always_log) {
  std::vector<EngineId> serving;
  for (std::uint32_t e = 0; e < members_.engines(Role::kPrefill); ++e) {
    if (members_.open(Role::kPrefill, EngineId{e})) serving.push_back(EngineId{e});
  }
  const policy::Allocation allocation = allocator_.decide(serving, demand_);
  queue_->assign(allocation.engines);
  std::vector<policy::ServingPool> pools;
  ranges_.clear();
  for (const policy::EngineTiers& one : allocation.engines) {
    pools.push_back(
        {one.range.first, one.range.last, 1000 * static_cast<std::int64_t>(config_.prefill.ranks)});
    ranges_[one.engine] = one.range;
    if (!allocation.changed && !always_log) continue;
    log(RequestId{0}, [&] {
      return AllocationRecord{one.engine, one.range.first, one.range.last, allocation.demand,
                              allocation.reason};
    });
  }
  admission_.observe_serving(std::move(pools));
}

void Machine::on(const Joined& event) {
  const Place place = event.place;
  if (!members_.known(place)) return;
  if (members_.heard(place)) on(Lost{place});  // it came back before anybody noticed that it was gone
  settle_lost(place);
  reports_[members_.index(place)] = 0;
  if (place.role == Role::kPrefill) silent_.erase(place.engine);
  const bool serving = members_.join(place, event.blocks_total);
  log(RequestId{0}, [&] { return MembershipRecord{place, serving, "joined"}; });
  if (!serving) return;
  const bool open = members_.open(place.role, place.engine);
  switch (place.role) {
    case Role::kPrefill:
      allocate(true);
      break;
    case Role::kDecode:
      for (std::uint32_t r = 0; r < members_.ranks(Role::kDecode); ++r) {
        const RankId rank{place.engine, r};
        const std::int64_t blocks = members_.blocks_total(Place::of(Role::kDecode, rank));
        decode_->add_rank(rank, {TokenCount{blocks * model::kBlockTokens}, config_.decode.max_running,
                                 model::speed_permille(config_.decode, rank.engine.value, rank.rank)});
        if (!open) decode_->set_open(rank, false);
      }
      break;
    case Role::kVision:
      ++encoders_joined_;
      vision_->add_encoder(place.encoder_id());
      vision_->set_open(place.encoder_id().machine, open);
      retry_waiting_images();
      break;
  }
  retry_held();
  serve();
}

/// What was aborted at this place is free now, whatever it would have answered.
void Machine::settle_lost(Place place) {
  for (const Releases::Settled& one : releases_.lost(place)) {
    if (one.next) emit(Abort{one.id, *one.next});
  }
  for (auto entry = quarantined_.lower_bound({place, RequestId{0}});
       entry != quarantined_.end() && entry->first.first == place;) {
    entry = quarantined_.erase(entry);
  }
  for (auto job = aborted_images_.lower_bound({place, RequestId{0}});
       job != aborted_images_.end() && job->first.first == place;) {
    job = aborted_images_.erase(job);
  }
}

void Machine::on(const Lost& event) {
  const Place place = event.place;
  if (!members_.known(place)) return;
  const bool ended_service = members_.lose(place);
  if (place.role == Role::kVision) {
    if (!ended_service) return;
    settle_lost(place);
    lose_encoder(place.encoder_id());
    log(RequestId{0}, [&] {
      return MembershipRecord{place, members_.serving(place.role, place.engine), "lost"};
    });
    return;
  }
  if (ended_service) {
    log(RequestId{0}, [&] {
      return MembershipRecord{place, false, "lost; its group is out until every rank has joined again"};
    });
    drop_group(place, "rank " + std::to_string(place.rank) + " of " +
                          (place.role == Role::kPrefill ? "prefill engine " : "decode group ") +
                          std::to_string(place.engine.value) + " was lost");
  }
  settle_lost(place);
  retry_held();
  serve();
}

void Machine::drop_group(Place lost, const std::string& why) {
  if (lost.role == Role::kPrefill) {
    queue_->withdraw(lost.engine);
  } else {
    // Out of the account first, so that no choice falls on the group again.
    for (std::uint32_t r = 0; r < members_.ranks(Role::kDecode); ++r) {
      decode_->remove_rank({lost.engine, r});
      refused_.erase({lost.engine, r});
      settle_lost(Place{lost.role, lost.engine, r});  // nothing there is in an account any more
    }
  }
  for (std::uint32_t r = 0; r < members_.ranks(lost.role); ++r) {
    const Place place{lost.role, lost.engine, r};
    const std::set<RequestId> ids = holdings_[members_.index(place)];
    for (const RequestId id : ids) {
      Life* life = find(id);
      if (life == nullptr) continue;
      if (lost.role == Role::kDecode) {
        seat_lost(*life, base::Code::kUnavailable, why);
        continue;
      }
      // A peer of the lost rank may be alive, stuck in its step, and still write into the decode blocks.
      if (life->stage == Stage::kPrefilling && life->seat == Seat::kTarget && r != lost.rank) {
        const Place decode = Place::of(Role::kDecode, life->decode);
        unhold(decode, id);
        quarantine(*life, decode);
        releases_.expect(id, place, decode);
        life->seat = Seat::kNone;
      }
      prefill_lost(*life, place, base::Code::kUnavailable, why);
    }
  }
  if (lost.role == Role::kPrefill) allocate(true);
}

void Machine::on(const Drain& event) {
  members_.drain(event.role, event.engine, event.on);
  const bool open = members_.open(event.role, event.engine);
  log(RequestId{0}, [&] {
    return MembershipRecord{{event.role, event.engine, 0},
                            members_.serving(event.role, event.engine),
                            event.on ? "draining: no new work" : "takes work again"};
  });
  switch (event.role) {
    case Role::kPrefill:
      allocate(true);
      break;
    case Role::kDecode:
      for (std::uint32_t r = 0; r < members_.ranks(Role::kDecode); ++r) {
        const RankId rank{event.engine, r};
        if (decode_->ledger().knows(rank) && !refused_.contains(rank)) decode_->set_open(rank, open);
      }
      break;
    case Role::kVision:
      if (members_.serving(event.role, event.engine)) {
        vision_->set_open(model::MachineId{event.engine.value}, open);
        retry_waiting_images();
      }
      break;
  }
  retry_held();
  serve();
}

void Machine::on(const Released& event) {
  if (!members_.heard(event.from)) return;
  spoke(event.from);
  std::optional<Place> next;
  if (!releases_.released(event.id, event.from, next)) return;
  if (next) emit(Abort{event.id, *next});
  if (event.from.role == Role::kDecode) {
    const auto alias = quarantined_.find({event.from, event.id});
    decode_->ended(alias == quarantined_.end() ? event.id : alias->second, now_);
    if (alias != quarantined_.end()) quarantined_.erase(alias);
    reopen(event.from.rank_id());
  } else if (event.from.role == Role::kVision) {
    if (const auto jobs = aborted_images_.find({event.from, event.id}); jobs != aborted_images_.end()) {
      for (const std::uint32_t image : jobs->second) vision_->finished({event.id, image});
      aborted_images_.erase(jobs);
    }
  }
  retry_held();
  serve();
}

void Machine::on(const RequestFailed& event) {
  if (event.from.role == Role::kVision) {
    Life* life = find(event.id);
    for (std::uint32_t i = 0; life != nullptr && i < life->images.size(); ++i) {
      if (encoding(event.id, i, event.from.encoder_id()) == nullptr) continue;
      on(EncodeFailed{event.from.encoder_id(), event.id, i, event.code, event.message});
      life = find(event.id);
    }
    return;
  }
  if (members_.heard(event.from)) spoke(event.from);
  Life* life = holder(event.id, event.from);
  if (life == nullptr) return;
  // Input that the engine cannot take fails at once; anything else may go well elsewhere.
  const bool is_final = event.code == base::Code::kInvalidArgument ||
                        event.code == base::Code::kUnsupported || event.code == base::Code::kTooLarge;
  if (event.from.role == Role::kPrefill) {
    if (life->stage != Stage::kPrefilling) return;
    if (is_final) {
      prefill_ended(*life);
      fail(*life, event.code, event.message);
    } else {
      prefill_lost(*life, event.from, event.code, event.message);
    }
  } else if (is_final) {
    decode_ended(*life);
    fail(*life, event.code, event.message);
  } else {
    seat_lost(*life, event.code, event.message);
  }
  retry_held();
  serve();
}

}  // namespace trimtab::cluster
