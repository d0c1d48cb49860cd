#include "apps/gateway_role.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <filesystem>

#include "agents/cluster_backend.h"
#include "agents/serving_metrics.h"
#include "apps/place.h"
#include "gateway/fake_backend.h"
#include "gateway/gateway.h"
#include "ipc/steady_clock.h"
#include "obs/log.h"
#include "obs/registry.h"

namespace trimtab::apps {

namespace {

namespace asio = boost::asio;

gateway::GatewayOptions gateway_options(const Instance& instance) {
  gateway::GatewayOptions options;
  options.config = instance.config;
  options.profile = instance.profile;
  options.answers_path = instance.state_dir + "/answers.sqlite";
  return options;
}

/// Runs until a signal came and the requests in flight have ended; `last` then ends what `io` still has.
base::Status serve_until_signal(asio::io_context& io, gateway::Gateway& gateway,
                                const std::function<void()>& last) {
  asio::signal_set signals(io, SIGTERM, SIGINT);
  const auto on_signal = [&](const boost::system::error_code& error, int) {
    if (error) return;
    spdlog::info("draining");
    gateway.drain(kDrainLimit, last);
  };
  signals.async_wait(on_signal);
  io.run();
  return {};
}

}  // namespace

base::Status run_gateway(const Instance& instance) {
  obs::start_log("gateway");
  auto text = gateway::PromptText::load(instance.model_path);
  if (!text) return tl::unexpected(text.error());
  asio::io_context io(1);
  const ipc::SteadyClock clock;
  obs::Registry registry;
  agents::describe_metrics(registry);
  // Alone, it has no `serve` that made the directories.
  TRIMTAB_TRY(make_own_directory(instance.runtime_dir));
  TRIMTAB_TRY(make_own_directory(instance.shm_dir));
  agents::ClusterBackendOptions options;
  options.config = instance.config;
  options.profile = instance.profile;
  options.runtime_dir = instance.runtime_dir;
  options.shm_dir = instance.shm_dir;
  options.log_dir = instance.state_dir + "/decisions";
  options.lives_path = instance.state_dir + "/gateway.lives";
  std::error_code ignored;
  std::filesystem::create_directories(options.log_dir, ignored);
  options.tokenizer_fingerprint = text->fingerprint();
  options.warn = [](const std::string& line) { spdlog::warn("{}", line); };
  auto backend = agents::ClusterBackend::start(std::move(options), io, clock, registry);
  if (!backend) return tl::unexpected(backend.error());
  auto gateway =
      gateway::Gateway::start(io, **backend, clock, registry, std::move(*text), gateway_options(instance));
  if (!gateway) return tl::unexpected(gateway.error());
  spdlog::info("listening on {}:{}", instance.config.gateway.host, (*gateway)->port());
  return serve_until_signal(io, **gateway, [&] {
    (*backend)->shutdown();
    io.stop();
  });
}

base::Status run_gateway_with_fake_engine(const Instance& instance, const FakeEngineOptions& fake) {
  obs::start_log("gateway");
  auto text = gateway::PromptText::load(instance.model_path);
  if (!text) return tl::unexpected(text.error());
  asio::io_context io(1);
  const ipc::SteadyClock clock;
  obs::Registry registry;
  gateway::FakeOptions options = gateway::fake_options(*text);
  options.first_token = base::Nanos{fake.first_token_ms * 1'000'000};
  options.step = base::Nanos{fake.step_ms * 1'000'000};
  gateway::FakeBackend backend(io, options);
  gateway::GatewayOptions gateway = gateway_options(instance);
  gateway.answers_path.clear();
  auto started = gateway::Gateway::start(io, backend, clock, registry, std::move(*text), gateway);
  if (!started) return tl::unexpected(started.error());
  spdlog::info("listening on {}:{} with a fake engine", instance.config.gateway.host, (*started)->port());
  return serve_until_signal(io, **started, [&] { io.stop(); });
}

}  // namespace trimtab::apps
