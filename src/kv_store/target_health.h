#pragma once

#include <cstdint>
#include <string_view>

#include "base/units.h"

namespace trimtab::kv_store {

/// Whether a target can be relied on, from how its requests end.
///
///   alive --failure--> suspect --`failures_to_die` in a row--> dead --backoff--> probing --answer--> alive
///             ^---answer---'                                     ^----failure, silence----'
///
/// A request that stays out longer than the timeout is a failure too. A suspect target is asked last and
/// still counts; what a dead one holds counts as lost. The backoff doubles with every vain probe. Alive again
/// means only that it answers: the owner then follows its changes before it relies on what it holds.
class TargetHealth {
 public:
  struct Options {
    std::uint32_t failures_to_die = 3;
    base::Nanos backoff{200'000'000};
    base::Nanos backoff_most{30'000'000'000};
    base::Nanos probe_timeout{1'000'000'000};
  };
  enum class State : std::uint8_t { kAlive, kSuspect, kDead, kProbing };
  enum class Event : std::uint8_t { kAnswer, kFailure, kTime };
  enum class Action : std::uint8_t {
    kNone,
    kDied,   // what it holds is lost until it revives
    kProbe,  // ask it something
    kRevive,
  };

  explicit TargetHealth(const Options& options) : options_(options), backoff_(options.backoff) {}
  Action step(Event event, base::Nanos now);
  State state() const { return state_; }
  bool usable() const { return state_ == State::kAlive || state_ == State::kSuspect; }
  /// When `kTime` has something to do; kForever: never.
  base::Nanos wake() const { return wake_; }

 private:
  Action die(base::Nanos now);

  Options options_;
  State state_ = State::kAlive;
  std::uint32_t failures_ = 0;
  base::Nanos backoff_, wake_ = base::kForever;
};
std::string_view name(TargetHealth::State state);

}  // namespace trimtab::kv_store
