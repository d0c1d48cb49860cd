#pragma once

#include <atomic>
#include <cstdint>

#include "base/units.h"

namespace trimtab::ipc {

/// Sleeps while `*word == expected`, across processes; returns early on wakes, signals and after `timeout`.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                base::Nanos timeout = base::kForever);
void futex_wake_all(std::atomic<std::uint32_t>& word);

/// Spins `spins` times, then parks until `*word != expected` or `timeout` passed. Returns false on the
/// timeout. Short spins only: two cores may carry a dozen ranks, and a spinning one keeps its peer from
/// running.
bool wait_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t expected, base::Nanos timeout,
                      int spins = 200);

}  // namespace trimtab::ipc
