#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "cluster/backend.h"
#include "gateway/prompt_text.h"
#include "model/cluster_config.h"
#include "model/profile.h"
#include "obs/registry.h"

namespace boost::asio {
class io_context;
}

namespace trimtab::gateway {

struct GatewayOptions {
  model::ClusterConfig config;
  model::Profile profile;
  std::string answers_path;                 // SQLite file of remembered answers; empty: kept in memory only
  base::Nanos ping_period{15'000'000'000};  // of silent Anthropic streams
};

/// The entrypoint: OpenAI and Anthropic HTTP in front of a `cluster::Backend` (docs/api.md). One thread, that
/// of `io`; `backend`, `clock` and `registry` must outlive it, and it must be destroyed before `io`.
///
///   auto text = gateway::PromptText::load(model_path);
///   auto backend = agents::ClusterBackend::start(...);
///   auto gateway = gateway::Gateway::start(io, **backend, clock, registry, std::move(*text), options);
///   io.run();
class Gateway {
 public:
  /// Binds the port at once. Errors: kUnavailable when the port is taken, kInvalidArgument for a host that is
  /// no address, kIo when the answers' file cannot be written.
  static base::Result<std::unique_ptr<Gateway>> start(boost::asio::io_context& io, cluster::Backend& backend,
                                                      const base::Clock& clock, obs::Registry& registry,
                                                      PromptText text, GatewayOptions options);
  virtual ~Gateway() = default;
  virtual std::uint16_t port() const = 0;
  /// Requests being served now.
  virtual std::size_t requests_in_flight() const = 0;
  /// Refuses new requests, lets those in flight end, cuts them after `limit`; then calls `done`.
  virtual void drain(base::Nanos limit, std::function<void()> done) = 0;
};

}  // namespace trimtab::gateway
