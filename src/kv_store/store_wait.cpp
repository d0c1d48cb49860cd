#include "kv_store/store_wait.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

namespace trimtab::kv_store {

base::Status wait_for(StripedStore& store, const base::Clock& clock, StripedStore::Handle handle,
                      base::Nanos most, std::vector<StoreEvent>& events) {
  const base::Nanos end = clock.now() + most;
  std::vector<pollfd> fds;
  std::size_t looked = 0;
  for (;;) {
    store.poll(clock.now(), events);
    for (; looked < events.size(); ++looked)
      if (events[looked].handle == handle && events[looked].last) return {};
    const base::Nanos now = clock.now();
    if (now >= end)
      return base::fail(
          base::Code::kDeadlineExceeded,
          fmt::format("no end of store operation {} within {} ms", handle, most.value / 1'000'000),
          "kv_store");
    const std::int64_t span = std::min(store.next_wake(), end).value - now.value;
    if (span <= 0) continue;
    fds.clear();
    for (const int fd : store.wake_fds()) fds.push_back({fd, POLLIN, 0});
    // Rounded up: waking a little late is better than turning in circles for the last millisecond.
    const auto millis = static_cast<int>(std::min<std::int64_t>((span + 999'999) / 1'000'000, 1'000));
    ::poll(fds.data(), fds.size(), millis);
  }
}

}  // namespace trimtab::kv_store
