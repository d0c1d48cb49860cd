#include "ipc/steady_clock.h"

#include <ctime>

namespace trimtab::ipc {

base::Nanos SteadyClock::now() const {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return base::Nanos{static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec};
}

}  // namespace trimtab::ipc
