#pragma once

#include "base/clock.h"

namespace trimtab::ipc {

/// CLOCK_MONOTONIC: comparable between the processes of one machine.
class SteadyClock final : public base::Clock {
 public:
  base::Nanos now() const override;
};

}  // namespace trimtab::ipc
