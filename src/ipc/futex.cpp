#include "ipc/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "ipc/steady_clock.h"

namespace trimtab::ipc {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, base::Nanos timeout) {
  timespec span{};
  timespec* limit = nullptr;
  if (timeout != base::kForever) {
    const std::int64_t ns = timeout.value > 0 ? timeout.value : 0;
    span = {static_cast<std::time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    limit = &span;
  }
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, limit, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool wait_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t expected, base::Nanos timeout,
                      int spins) {
  for (int i = 0; i < spins; ++i) {
    if (word.load(std::memory_order_acquire) != expected) return true;
    __builtin_ia32_pause();
  }
  SteadyClock clock;
  const bool bounded = timeout != base::kForever;
  const base::Nanos end = bounded ? clock.now() + timeout : base::kForever;
  while (word.load(std::memory_order_acquire) == expected) {
    if (!bounded) {
      futex_wait(word, expected);
      continue;
    }
    const base::Nanos left = end - clock.now();
    if (left.value <= 0) return false;
    futex_wait(word, expected, left);
  }
  return true;
}

}  // namespace trimtab::ipc
