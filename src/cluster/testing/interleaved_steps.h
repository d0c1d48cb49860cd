#pragma once

// How the interleaved world moves: the host's steps and what each engine does.
#include "cluster/testing/interleaved.h"

namespace trimtab::cluster::testing {

inline void Interleaved::step(const Event& event) {
  std::deque<Event> events{event};
  while (!events.empty()) {
    const Event next = std::move(events.front());
    events.pop_front();
    now_ += Nanos{1'000};
    told_ = base::mix(told_, hash_of(next));
    std::vector<Action> actions;
    cluster_->step(next, now_, actions);
    agents_.observe(next);
    for (const Action& action : actions) agents_.observe(action);
    for (const Action& action : actions) perform(action, next);
    std::vector<Event> pulls;
    agents_.take_pulls(pulls);
    for (Event& pull : pulls) events.push_back(std::move(pull));
  }
}

inline void Interleaved::perform(const Action& action, const Event&) {
  const auto send = [this, &action](const Place& place) {
    if (!places_[place].gone) places_[place].down.push_back(action);
  };
  if (std::holds_alternative<Match>(action)) {
    match_ = kPrompt + tokens_;
  } else if (std::holds_alternative<StartPrefill>(action) || std::holds_alternative<SendTarget>(action)) {
    send(prefill_);
  } else if (std::holds_alternative<SendEmbeddings>(action)) {
    if (embeddings_-- == 0) violations_.push_back("embeddings sent that the host does not have");
    send(prefill_);
  } else if (std::holds_alternative<DropEmbeddings>(action)) {
    if (embeddings_-- == 0) violations_.push_back("embeddings dropped that the host does not have");
  } else if (std::holds_alternative<StartEncode>(action)) {
    send(encoder_);
  } else if (const auto* reserve = std::get_if<Reserve>(&action)) {
    send(Place::of(model::Role::kDecode, reserve->rank));
  } else if (const auto* decode = std::get_if<StartDecode>(&action)) {
    send(Place::of(model::Role::kDecode, decode->rank));
  } else if (const auto* abort = std::get_if<Abort>(&action)) {
    send(abort->place);
  } else if (std::holds_alternative<Deliver>(action)) {
    if (!live_) violations_.push_back("a token after the end");
    if (position_ != kPrompt + tokens_) violations_.push_back("a token out of its place");
    ++tokens_;
  } else if (const auto* timer = std::get_if<SetTimer>(&action)) {
    timer_ = timer->at;
  } else if (std::holds_alternative<Finish>(action) || std::holds_alternative<Fail>(action)) {
    if (!live_) violations_.push_back("a second end");
    live_ = false;
    (std::holds_alternative<Finish>(action) ? finished_ : failed_) = true;
  }
}

inline void Interleaved::take(const Choice& choice) {
  static constexpr const char* kNames[] = {"reads", "is heard", "works", "match", "special", "joins", "time"};
  story_.push_back(std::string(kNames[static_cast<int>(choice.work)]) + " " +
                   std::to_string(static_cast<int>(choice.place.role)));
  Channel& channel = places_[choice.place];
  switch (choice.work) {
    case Work::kMatch: {
      const std::int64_t tokens = *match_;
      match_.reset();
      if (live_) step(Matched{kId, TokenCount{tokens}, TokenCount{0}});
      break;
    }
    case Work::kDown: {
      const Action action = std::move(channel.down.front());
      channel.down.pop_front();
      engine_reads(choice.place, action);
      break;
    }
    case Work::kUp: {
      const Event event = std::move(channel.up.front());
      channel.up.pop_front();
      auto& positions = positions_[choice.place];
      position_.reset();
      if (std::holds_alternative<PrefillDone>(event) || std::holds_alternative<DecodeStepped>(event)) {
        position_ = positions.front();
        positions.pop_front();
      }
      if (std::holds_alternative<Encoded>(event)) ++embeddings_;
      step(event);
      break;
    }
    case Work::kWork:
      engine_works(choice.place);
      break;
    case Work::kTime:
      now_ = std::max(now_, *timer_);
      timer_.reset();
      step(Timer{});
      break;
    case Work::kSpecial:
      --specials_left_;
      special();
      break;
    case Work::kJoin:
      channel.gone = false;
      step(Joined{choice.place, 64});
      break;
  }
}

inline void Interleaved::engine_reads(const Place& place, const Action& action) {
  if (const auto* start = std::get_if<StartPrefill>(&action)) {
    if (prefill_state_) violations_.push_back("StartPrefill twice");
    prefill_state_ = Prefilling{};
    prefill_state_->tokens = start->tokens.value;
    prefill_state_->embeddings = !image_;
    prefill_state_->hand_over = start->hand_over;
  } else if (const auto* target = std::get_if<SendTarget>(&action)) {
    if (prefill_state_) {
      prefill_state_->target = true;
      prefill_state_->target_rank = target->decode.rank;
      prefill_state_->target_generation = decode_generation_;
    }
  } else if (std::holds_alternative<SendEmbeddings>(action)) {
    if (prefill_state_) prefill_state_->embeddings = true;
  } else if (std::holds_alternative<StartEncode>(action)) {
    encoding_ = true;
  } else if (std::holds_alternative<Reserve>(action)) {
    if (decoding_[place.rank].there) violations_.push_back("Reserve twice");
    const bool refuse = special_ == Special::kRefuse && std::exchange(specials_left_, 0) > 0;
    if (!refuse) decoding_[place.rank] = Decoding{true};
    up(place, Reserved{place.rank_id(), kId, !refuse, 10});
  } else if (const auto* decode = std::get_if<StartDecode>(&action)) {
    Decoding& there = decoding_[place.rank];
    if (!there.there || !there.written) {
      violations_.push_back("StartDecode without KV in place");
      return;
    }
    there.running = true;
    there.left = decode->output_left.value;
  } else if (std::holds_alternative<Abort>(action)) {
    if (place == prefill_) prefill_state_.reset();
    if (place.role == model::Role::kDecode) decoding_[place.rank] = Decoding{};
    if (place == encoder_) encoding_ = false;
    up(place, Released{place, kId, 10});
  }
}

inline void Interleaved::engine_works(const Place& place) {
  if (place == prefill_ && !(prefill_state_->stepped && prefill_state_->computed)) {
    // All but the last 50 tokens first: what is left is due for a decode place.
    const bool first = !prefill_state_->stepped;
    (first ? prefill_state_->stepped : prefill_state_->computed) = true;
    const std::int64_t before = first ? 0 : prefill_state_->tokens - 50;
    PrefillStepped event;
    event.from = prefill_.rank_id();
    event.predicted = event.actual = Nanos{1'000'000};
    event.chunks.push_back(
        {kId, TokenCount{first ? prefill_state_->tokens - 50 : 50}, TokenCount{before}, Nanos{1'000'000}});
    up(prefill_, event);
  } else if (place == prefill_) {
    const Prefilling done = *prefill_state_;
    prefill_state_.reset();
    bool handed = done.target;
    if (handed && special_ == Special::kHandOver) handed = std::exchange(specials_left_, 0) == 0;
    // The memory of a decode rank that is gone harms nobody.
    if (handed && done.target_generation == decode_generation_) {
      Decoding& there = decoding_[done.target_rank];
      if (!there.there) {
        violations_.push_back("KV was written into freed decode blocks");
      } else {
        there.written = true;
        there.position = done.tokens + 1;
      }
    }
    PrefillDone event{prefill_.rank_id(),        kId, handed, TokenCount{0}, TokenCount{done.tokens},
                      model::FinishReason::kNone};
    positions_[prefill_].push_back(done.tokens);
    up(prefill_, event);
  } else if (place.role == model::Role::kDecode) {
    Decoding& there = decoding_[place.rank];
    DecodeStepped event;
    event.from = place.rank_id();
    const bool last = --there.left == 0;
    event.tokens.push_back({kId, last ? model::FinishReason::kLength : model::FinishReason::kNone});
    positions_[place].push_back(there.position++);
    if (last) {
      there = Decoding{};
    } else {
      event.running = 1;
      event.kv = TokenCount{there.position};
    }
    up(place, event);
  } else {
    encoding_ = false;
    up(encoder_, Encoded{encoder_.encoder_id(), kId, 0, Nanos{1}});
  }
}

inline void Interleaved::lose(const Place& place) {
  places_[place].down.clear();
  places_[place].up.clear();
  places_[place].gone = true;
  positions_[place].clear();
  if (place == prefill_) {
    prefill_state_.reset();
  } else if (place == decode_) {
    decoding_[place.rank] = Decoding{};
    ++decode_generation_;
  } else {
    encoding_ = false;
  }
  step(Lost{place});
}

inline void Interleaved::special() {
  const bool leaves = special_ == Special::kMoveCancel && specials_left_ == 0;
  switch (leaves ? Special::kCancel : special_) {
    case Special::kMove:
    case Special::kMoveAndBack:
    case Special::kMoveCancel:
      step(Move{kId, decoding_[0].running ? other_.rank_id() : decode_.rank_id()});
      break;
    case Special::kCancel:
      if (!live_) return;
      live_ = false;
      cancelled_ = true;
      step(Cancelled{kId});
      break;
    case Special::kLosePrefill:
      lose(prefill_);
      break;
    case Special::kLoseDecode:
      lose(decode_);
      break;
    case Special::kLoseEncoder:
      lose(encoder_);
      break;
    case Special::kDeadline:
    case Special::kLease:
      now_ += Nanos{2'000'000'000};
      step(Timer{});
      break;
    case Special::kNone:
    case Special::kRefuse:
    case Special::kHandOver:
      break;
  }
}

}  // namespace trimtab::cluster::testing
