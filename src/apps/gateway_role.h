#pragma once

#include "apps/instance.h"
#include "base/units.h"

namespace trimtab::apps {

/// How long a gateway that was told to stop lets requests in flight go on.
constexpr base::Nanos kDrainLimit{10'000'000'000};

/// The gateway process: HTTP, the cluster machine and its agents on one thread, until SIGTERM or SIGINT,
/// which drain it.
base::Status run_gateway(const Instance& instance);

struct FakeEngineOptions {
  std::int64_t first_token_ms = 0;
  std::int64_t step_ms = 0;
};

/// The same HTTP side in front of an echo instead of engines: to load-test clients and the gateway itself.
base::Status run_gateway_with_fake_engine(const Instance& instance, const FakeEngineOptions& fake);

}  // namespace trimtab::apps
