#pragma once

// The host's part of the virtual world: one step, and each action done.
#include "cluster/testing/virtual_world.h"

namespace trimtab::cluster::testing {

using Positions = std::map<RequestId, std::int64_t>;

inline void World::one_step(const Event& event, const Positions& positions) {
  // A host keeps every embedding it was sent until the machine says where it goes.
  if (const auto* encoded = std::get_if<Encoded>(&event)) {
    if (!embeddings_.emplace(encoded->id, encoded->image).second)
      violation("an image's embeddings came twice");
  }
  std::vector<Action> actions;
  cluster_->step(event, loop_.now(), actions);
  ++steps_;
  agents_.observe(event);
  for (const Action& action : actions) {
    agents_.observe(action);
    base::Writer bytes;
    std::visit([&bytes](const auto& one) { bytes(one); }, action);
    hash_ = base::mix(hash_, base::checksum(bytes.take(), action.index()));
  }
  hash_ = base::mix(hash_, static_cast<std::uint64_t>(loop_.now().value));
  for (const Action& action : actions) {
    std::visit([&](const auto& one) { perform(one, positions); }, action);
  }
  std::vector<Event> pulls;
  agents_.take_pulls(pulls);
  for (Event& pull : pulls) waiting_.emplace_back(std::move(pull), Positions{});
}

inline void World::perform(const Match& match, const Positions&) {
  const std::int64_t tokens = asks_.at(match.id).prompt + outcomes_.at(match.id).tokens;
  loop_.after(Nanos{static_cast<std::int64_t>(prng_.below(300'000))}, [this, id = match.id, tokens] {
    if (live_.contains(id)) step(Matched{id, TokenCount{tokens}, TokenCount{hit_of(id, tokens)}});
  });
}

inline void World::perform(const Accept& accept, const Positions&) {
  if (std::exchange(outcomes_[accept.id].accepted, true)) violation("accepted twice");
}

inline void World::perform(const StartPrefill& start, const Positions&) {
  starts_[Place::of(model::Role::kPrefill, start.rank)] += 1;
  VirtualPrefill* engine = prefill_[start.rank.engine.value].get();
  to(*engine, start.rank.rank,
     [engine, start, images = asks_.at(start.id).images] { engine->start(start, images); });
}

inline void World::perform(const StartEncode& encode, const Positions&) {
  VirtualEncoder* encoder = encoders_.at(encode.encoder).get();
  const std::int64_t patches = asks_.at(encode.id).images[encode.image].patches;
  link(Place::of(encode.encoder)).to_engine([encoder, encode, patches] {
    encoder->encode(encode.id, encode.image, patches);
  });
}

inline void World::perform(const SendEmbeddings& rows, const Positions&) {
  if (embeddings_.erase({rows.id, rows.image}) == 0) violation("embeddings sent that the host does not have");
  VirtualPrefill* engine = prefill_[rows.rank.engine.value].get();
  const model::ImageSpan span = asks_.at(rows.id).images[rows.image];
  to(*engine, rows.rank.rank, [engine, rows, span] { engine->embeddings(rows.rank.rank, rows.id, span); });
}

inline void World::perform(const DropEmbeddings& drop, const Positions&) {
  if (embeddings_.erase({drop.id, drop.image}) == 0)
    violation("embeddings dropped that the host does not have");
}

inline void World::perform(const Reserve& reserve, const Positions&) {
  VirtualDecode* group = decode_[reserve.rank.engine.value].get();
  to(*group, reserve.rank.rank, [group, reserve] { group->reserve(reserve); });
}

inline void World::perform(const SendTarget& target, const Positions&) {
  VirtualPrefill* engine = prefill_[target.prefill.engine.value].get();
  const std::uint64_t generation = granted_.at(target.id);
  to(*engine, target.prefill.rank, [engine, target, generation] { engine->target(target, generation); });
}

inline void World::perform(const StartDecode& decode, const Positions&) {
  VirtualDecode* group = decode_[decode.rank.engine.value].get();
  const TokenCount tokens{asks_.at(decode.id).prompt + outcomes_.at(decode.id).tokens};
  to(*group, decode.rank.rank, [group, decode, tokens] { group->start(decode, tokens); });
}

inline void World::perform(const Abort& abort, const Positions&) {
  const RequestId id = abort.id;
  const std::uint32_t rank = abort.place.rank;
  if (abort.place.role == model::Role::kPrefill) {
    VirtualPrefill* engine = prefill_[abort.place.engine.value].get();
    to(*engine, rank, [engine, id, rank] { engine->abort(rank, id); });
  } else if (abort.place.role == model::Role::kDecode) {
    VirtualDecode* group = decode_[abort.place.engine.value].get();
    to(*group, rank, [group, id, rank] { group->abort(rank, id); });
  } else {
    VirtualEncoder* encoder = encoders_.at(abort.place.encoder_id()).get();
    link(abort.place).to_engine([encoder, id] { encoder->abort(id); });
  }
}

inline void World::perform(const Deliver& token, const Positions& positions) {
  if (!live_.contains(token.id)) return violation("a token for a request that has ended");
  Outcome& outcome = outcomes_[token.id];
  const auto position = positions.find(token.id);
  if (position == positions.end()) return violation("a Deliver without a token");
  // Each token once, in order, whatever happened to the request in between.
  const std::int64_t due = asks_.at(token.id).prompt + outcome.tokens;
  if (position->second != due) {
    violation("request " + std::to_string(token.id.value) + ": token at " + std::to_string(position->second) +
              " delivered where " + std::to_string(due) + " was due");
  }
  if (outcome.tokens++ == 0) outcome.first_token = loop_.now();
}

inline void World::perform(const Finish& finish, const Positions&) {
  if (live_.erase(finish.id) == 0) violation("finished a request that has ended");
  Outcome& outcome = outcomes_[finish.id];
  outcome.finished = true;
  outcome.reason = finish.reason;
  outcome.ended = loop_.now();
  if (finish.output.value != outcome.tokens) violation("the count of tokens is not what was delivered");
}

inline void World::perform(const Fail& fail, const Positions&) {
  if (live_.erase(fail.id) == 0) violation("failed a request that has ended");
  Outcome& outcome = outcomes_[fail.id];
  outcome.failed = true;
  outcome.code = fail.code;
  outcome.message = fail.message;
  outcome.retry_after = fail.retry_after;
  outcome.ended = loop_.now();
}

inline void World::perform(const Log& entry, const Positions&) {
  if (keep_records_) records_.push_back(entry.record);
}

inline void World::perform(const SetTimer& timer, const Positions&) {
  loop_.at(timer.at, [this, number = ++timer_] {
    if (number == timer_) step(Timer{});
  });
}

}  // namespace trimtab::cluster::testing
