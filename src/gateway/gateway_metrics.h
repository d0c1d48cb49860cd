#pragma once

#include <cstdint>

#include "gateway/live_request.h"
#include "net/http_server.h"
#include "obs/registry.h"

namespace trimtab::gateway {

/// Carries the gateway's plain counters into the registry when somebody looks.
class GatewayMetrics {
 public:
  explicit GatewayMetrics(obs::Registry& registry);
  void first_token(Api api, double seconds);
  void publish(const GatewayCounters& counters, const net::ServerStats& stats, std::size_t in_flight);

 private:
  void raise(const char* name, std::uint64_t now, std::uint64_t before, const base::Labels& labels = {});

  obs::Registry& registry_;
  GatewayCounters before_;
  net::ServerStats net_before_;
};

}  // namespace trimtab::gateway
