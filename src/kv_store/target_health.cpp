#include "kv_store/target_health.h"

#include <algorithm>

namespace trimtab::kv_store {

TargetHealth::Action TargetHealth::die(base::Nanos now) {
  state_ = State::kDead;
  wake_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, options_.backoff_most);
  return Action::kDied;
}

TargetHealth::Action TargetHealth::step(Event event, base::Nanos now) {
  switch (state_) {
    case State::kAlive:
    case State::kSuspect:
      if (event == Event::kAnswer) {
        state_ = State::kAlive;
        failures_ = 0;
        backoff_ = options_.backoff;
      } else if (event == Event::kFailure) {
        state_ = State::kSuspect;
        if (++failures_ >= options_.failures_to_die) return die(now);
      }
      return Action::kNone;
    case State::kDead:
      // Answers to what was asked before it died prove nothing; only a probe does.
      if (event != Event::kTime || now < wake_) return Action::kNone;
      state_ = State::kProbing;
      wake_ = now + options_.probe_timeout;
      return Action::kProbe;
    case State::kProbing:
      break;
  }
  if (event == Event::kAnswer) {
    state_ = State::kAlive;
    failures_ = 0;
    wake_ = base::kForever;
    return Action::kRevive;
  }
  if (event == Event::kFailure || now >= wake_) {
    die(now);  // it was dead to the owner all along
  }
  return Action::kNone;
}

std::string_view name(TargetHealth::State state) {
  switch (state) {
    case TargetHealth::State::kAlive:
      return "alive";
    case TargetHealth::State::kSuspect:
      return "suspect";
    case TargetHealth::State::kDead:
      return "dead";
    case TargetHealth::State::kProbing:
      return "probing";
  }
  return "?";
}

}  // namespace trimtab::kv_store
