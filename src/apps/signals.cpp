#include "apps/signals.h"

#include <csignal>

namespace trimtab::apps {

namespace {

std::atomic<bool> stop{false};

extern "C" void request_stop(int) { stop.store(true); }

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = request_stop;  // without SA_RESTART: a blocked poll returns
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  return stop;
}

}  // namespace trimtab::apps
