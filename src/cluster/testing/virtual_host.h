#pragma once

// The host's part of the virtual world: one step, and each action done.
#include "cluster/testing/virtual_world.h"

namespace trimtab::cluster::testing {

inline void World::one_step(const Event& event, const std::map<RequestId, std::int64_t>& positions) {
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
  for (const Action& action : actions) perform(action, positions);
  std::vector<Event> pulls;
  agents_.take_pulls(pulls);
  for (Event& pull : pulls) waiting_.emplace_back(std::move(pull), std::map<RequestId, std::int64_t>{});
}

inline void World::deliver(RequestId id, const std::map<RequestId, std::int64_t>& positions) {
  if (!live_.contains(id)) return violation("a token for a request that has ended");
  Outcome& outcome = outcomes_[id];
  const auto position = positions.find(id);
  if (position == positions.end()) return violation("a Deliver without a token");
  // Each token once, in order, whatever happened to the request in between.
  if (position->second != asks_.at(id).prompt + outcome.tokens) {
    violation("request " + std::to_string(id.value) + ": token at " + std::to_string(position->second) +
              " delivered where " + std::to_string(asks_.at(id).prompt + outcome.tokens) + " was due");
  }
  if (outcome.tokens++ == 0) outcome.first_token = loop_.now();
}

inline void World::perform(const Action& action, const std::map<RequestId, std::int64_t>& positions) {
  if (const auto* match = std::get_if<Match>(&action)) {
    const std::int64_t tokens = asks_.at(match->id).prompt + outcomes_.at(match->id).tokens;
    loop_.after(Nanos{static_cast<std::int64_t>(prng_.below(300'000))}, [this, id = match->id, tokens] {
      if (live_.contains(id)) step(Matched{id, TokenCount{tokens}, TokenCount{hit_of(id, tokens)}});
    });
  } else if (const auto* accept = std::get_if<Accept>(&action)) {
    if (std::exchange(outcomes_[accept->id].accepted, true)) violation("accepted twice");
  } else if (const auto* start = std::get_if<StartPrefill>(&action)) {
    VirtualPrefill* engine = prefill_[start->rank.engine.value].get();
    send(Place::of(model::Role::kPrefill, start->rank),
         [engine, start = *start, images = asks_.at(start->id).images] {
           engine->deliver([engine, start, images] { engine->start(start, images); });
         });
  } else if (const auto* encode = std::get_if<StartEncode>(&action)) {
    VirtualEncoder* encoder = encoders_.at(encode->encoder).get();
    const std::int64_t patches = asks_.at(encode->id).images[encode->image].patches;
    send(Place::of(encode->encoder),
         [encoder, encode = *encode, patches] { encoder->encode(encode.id, encode.image, patches); });
  } else if (const auto* rows = std::get_if<SendEmbeddings>(&action)) {
    if (embeddings_.erase({rows->id, rows->image}) == 0)
      violation("embeddings sent that the host does not have");
    VirtualPrefill* engine = prefill_[rows->rank.engine.value].get();
    const model::ImageSpan span = asks_.at(rows->id).images[rows->image];
    send(Place::of(model::Role::kPrefill, rows->rank), [engine, rows = *rows, span] {
      engine->deliver([engine, rows, span] { engine->embeddings(rows.rank.rank, rows.id, span); });
    });
  } else if (const auto* drop = std::get_if<DropEmbeddings>(&action)) {
    if (embeddings_.erase({drop->id, drop->image}) == 0)
      violation("embeddings dropped that the host does not have");
  } else if (const auto* reserve = std::get_if<Reserve>(&action)) {
    VirtualDecode* group = decode_[reserve->rank.engine.value].get();
    send(Place::of(model::Role::kDecode, reserve->rank),
         [group, reserve = *reserve] { group->deliver([group, reserve] { group->reserve(reserve); }); });
  } else if (const auto* target = std::get_if<SendTarget>(&action)) {
    VirtualPrefill* engine = prefill_[target->prefill.engine.value].get();
    send(Place::of(model::Role::kPrefill, target->prefill),
         [engine, target = *target, generation = granted_.at(target->id)] {
           engine->deliver([engine, target, generation] { engine->target(target, generation); });
         });
  } else if (const auto* decode = std::get_if<StartDecode>(&action)) {
    VirtualDecode* group = decode_[decode->rank.engine.value].get();
    const TokenCount tokens{asks_.at(decode->id).prompt + outcomes_.at(decode->id).tokens};
    send(Place::of(model::Role::kDecode, decode->rank), [group, decode = *decode, tokens] {
      group->deliver([group, decode, tokens] { group->start(decode, tokens); });
    });
  } else if (const auto* abort = std::get_if<Abort>(&action)) {
    const RequestId id = abort->id;
    const std::uint32_t rank = abort->place.rank;
    if (abort->place.role == model::Role::kPrefill) {
      VirtualPrefill* engine = prefill_[abort->place.engine.value].get();
      send(abort->place,
           [engine, id, rank] { engine->deliver([engine, id, rank] { engine->abort(rank, id); }); });
    } else if (abort->place.role == model::Role::kDecode) {
      VirtualDecode* group = decode_[abort->place.engine.value].get();
      send(abort->place,
           [group, id, rank] { group->deliver([group, id, rank] { group->abort(rank, id); }); });
    } else {
      VirtualEncoder* encoder = encoders_.at(abort->place.encoder_id()).get();
      send(abort->place, [encoder, id] { encoder->abort(id); });
    }
  } else if (const auto* token = std::get_if<Deliver>(&action)) {
    deliver(token->id, positions);
  } else if (const auto* finish = std::get_if<Finish>(&action)) {
    if (live_.erase(finish->id) == 0) violation("finished a request that has ended");
    Outcome& outcome = outcomes_[finish->id];
    outcome.finished = true;
    outcome.reason = finish->reason;
    outcome.ended = loop_.now();
    if (finish->output.value != outcome.tokens) violation("the count of tokens is not what was delivered");
  } else if (const auto* fail = std::get_if<Fail>(&action)) {
    if (live_.erase(fail->id) == 0) violation("failed a request that has ended");
    Outcome& outcome = outcomes_[fail->id];
    outcome.failed = true;
    outcome.code = fail->code;
    outcome.message = fail->message;
    outcome.retry_after = fail->retry_after;
    outcome.ended = loop_.now();
  } else if (const auto* timer = std::get_if<SetTimer>(&action)) {
    loop_.at(timer->at, [this, number = ++timer_] {
      if (number == timer_) step(Timer{});
    });
  } else if (const auto* entry = std::get_if<Log>(&action)) {
    if (keep_records_) records_.push_back(entry->record);
  }
}

}  // namespace trimtab::cluster::testing
