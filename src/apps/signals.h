#pragma once

#include <atomic>

namespace trimtab::apps {

/// A flag that SIGTERM and SIGINT set, for roles that poll one.
const std::atomic<bool>& stop_on_signals();

}  // namespace trimtab::apps
