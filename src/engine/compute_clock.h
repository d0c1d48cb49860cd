#pragma once

#include <ctime>

#include "base/units.h"

namespace trimtab::engine {

/// Processor time of the calling thread: what a step's work costs, whatever else the machine runs beside it.
inline base::Nanos compute_now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return base::Nanos{static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec};
}

}  // namespace trimtab::engine
