#pragma once

#include "base/units.h"

namespace trimtab::base {

/// Where time comes from. Policies and state machines take instants as arguments; only hosts ask a clock.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic; the zero is the clock's own.
  virtual Nanos now() const = 0;
};

/// Time that stands still until it is told to move: for tests and the simulator.
class ManualClock final : public Clock {
 public:
  Nanos now() const override { return now_; }
  void advance(Nanos span) { now_ += span; }
  void set(Nanos instant) { now_ = instant; }

 private:
  Nanos now_{0};
};

}  // namespace trimtab::base
