// Running requests that change decode ranks. The policy plans a move from the exact state (migrator.h); here
// it is carried out with what every engine can do anyway: the rank is told to let go, the request goes back
// to the match with what it generated, finds its full blocks in the pool, and re-enters on the rank that was
// kept for it. Tokens that the old rank still draws meanwhile are stale and drawn again, so none is lost or
// doubled.
#include "base/check.h"
#include "cluster/machine.h"

namespace trimtab::cluster {

using model::Role;

void Machine::on(const Move& event) {
  Life* life = find(event.id);
  if (life == nullptr || !movable(*life, event.to)) return;
  move(*life, event.to, "moved to decode rank " + model::to_string(event.to) + " as asked");
  retry_held();
  serve();
}

bool Machine::movable(const Life& life, RankId to) const {
  const Place place = Place::of(Role::kDecode, to);
  if (life.seat != Seat::kRunning || life.decode == to || life.output_left().value < 2) return false;
  if (!members_.open(place) || refused_.contains(to) || releases_.pending(life.id, place)) return false;
  // It comes back through a prefill rank, which must be able to hold it.
  const std::int64_t blocks = (life.tokens().value + model::kBlockTokens - 1) / model::kBlockTokens;
  return blocks <= config_.prefill.kv_blocks && decode_->ledger().has_room(to, life.tokens());
}

void Machine::move(Life& life, RankId to, const std::string& why) {
  const Place old = Place::of(Role::kDecode, life.decode);
  const RequestId alias{alias_--};
  const bool known = decode_->departs(life.id, alias, to, now_);
  TRIMTAB_CHECK(known, "a running request without an account");
  quarantined_[{old, life.id}] = alias;
  unhold(old, life.id);
  life.seat = Seat::kNone;
  abort(life.id, old);
  requeue(life, old, false, base::Code::kUnavailable, why);
  life.seat = Seat::kBound;
  life.decode = to;
  hold(Place::of(Role::kDecode, to), life.id);
  bound_.insert(life.id);
}

/// After a rank's report. A planned move waits for the report of the rank that lets go: then nothing that it
/// drew is still on its way, and all that is drawn twice is the step under way.
void Machine::plan_moves(RankId reported) {
  if (decode_->config().moves_permille == 0 || now_ < moves_from_) return;
  if (auto plan = decode_->migrate(now_); !plan.empty()) planned_ = std::move(plan);
  for (std::size_t i = 0; i < planned_.size();) {
    if (planned_[i].from != reported) {
      ++i;
      continue;
    }
    const policy::DecodeMove planned = planned_[i];
    planned_.erase(planned_.begin() + static_cast<std::ptrdiff_t>(i));
    Life* life = holder(planned.id, Place::of(Role::kDecode, planned.from));
    if (life != nullptr && movable(*life, planned.to)) {
      move(*life, planned.to,
           "moved to decode rank " + model::to_string(planned.to) + ": " + describe(planned));
    } else {
      planned_.clear();  // half an exchange would make things worse
      return;
    }
  }
}

/// The prompt is due again: the rank that was kept is asked. False: it takes nothing now.
bool Machine::take_bound(Life& life) {
  const Place place = Place::of(Role::kDecode, life.decode);
  if (!members_.open(place) || refused_.contains(life.decode) || releases_.pending(life.id, place))
    return false;
  bound_.erase(life.id);
  policy::DecodeDecision decision;
  decision.rank = life.decode;
  decision.reason.rule = policy::DecodeRule::kMovedThere;
  decision.reason.ranks = decode_->ledger().totals().ranks;
  const policy::DecodeLoad load = decode_->ledger().load(life.decode);  // it counts there already
  decision.reason.winner =
      policy::DecodeLoad{load.rank, load.running - 1, load.kv - decode_->ledger().find(life.id)->tokens};
  log_choice(life, decision, room_for(life));
  ask_seat(life, room_for(life));
  return true;
}

/// Room that is kept for those to come must not keep out who is here, or both could wait for ever: the moved
/// ones choose anew when they are due. True when there was any. (A ceiling's hold ends by itself.)
bool Machine::give_up_bound(const policy::DecodeDecision& decision) {
  using Rule = policy::DecodeRule;
  if (decision.rank ||
      (decision.reason.rule != Rule::kHeldNoRoom && decision.reason.rule != Rule::kHeldInGroup))
    return false;
  const std::set<RequestId> all = bound_;
  for (const RequestId id : all) decode_ended(lives_.at(id));
  return !all.empty();
}

void Machine::came_back(const Life& life) {
  if (life.tokens() - life.hit <= limits_.move_loss_max) return;
  moves_from_ = now_ + limits_.moves_pause;
  planned_.clear();
}

}  // namespace trimtab::cluster
