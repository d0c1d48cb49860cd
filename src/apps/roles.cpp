#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/gateway_role.h"
#include "apps/place.h"
#include "apps/pool_preflight.h"
#include "apps/signals.h"
#include "engine/rank.h"
#include "kv_pool/loader.h"
#include "kv_state/state_host.h"
#include "obs/log.h"
#include "policy/cost/cost_model.h"
#include "vision/encoder.h"

namespace trimtab::apps {

namespace {

void run_loaded(const InstanceOptions& options, const std::function<base::Status(const Instance&)>& role,
                bool needs_model = true) {
  auto instance = load_instance(options, needs_model);
  finish(instance ? role(*instance) : base::Status(tl::unexpected(instance.error())));
}

void add_gateway(CLI::App& app) {
  struct Options {
    InstanceOptions instance;
    bool fake_engine = false;
    FakeEngineOptions fake;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("gateway", "the entrypoint alone: HTTP, balancers, agents");
  add_instance_options(*command, options->instance);
  command->add_flag("--fake-engine", options->fake_engine,
                    "echo prompts instead of using engines: for load tests of clients and gateway");
  command->add_option("--fake-first-token-ms", options->fake.first_token_ms, "its delay to the first token")
      ->capture_default_str();
  command->add_option("--fake-step-ms", options->fake.step_ms, "its delay between tokens")
      ->capture_default_str();
  command->callback([options] {
    run_loaded(options->instance, [&](const Instance& instance) {
      return options->fake_engine ? run_gateway_with_fake_engine(instance, options->fake)
                                  : run_gateway(instance);
    });
  });
}

void add_engine(CLI::App& app) {
  struct Options {
    InstanceOptions instance;
    std::string role;
    std::uint32_t engine = 0, rank = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("engine", "one rank of the reference engine");
  add_instance_options(*command, options->instance);
  command->add_option("--role", options->role, "prefill or decode")
      ->required()
      ->check(CLI::IsMember({"prefill", "decode"}));
  command->add_option("--engine", options->engine, "index of its DP group")->required();
  command->add_option("--rank", options->rank, "index in the group")->required();
  command->callback([options] {
    run_loaded(options->instance, [&](const Instance& instance) -> base::Status {
      engine::RankOptions rank;
      rank.config = instance.config;
      rank.profile = instance.profile;
      rank.role = options->role == "prefill" ? model::Role::kPrefill : model::Role::kDecode;
      rank.engine = options->engine;
      rank.rank = options->rank;
      rank.model_path = instance.model_path;
      rank.runtime_dir = instance.runtime_dir;
      rank.shm_dir = instance.shm_dir;
      obs::start_log(options->role + " " + std::to_string(rank.engine) + "." + std::to_string(rank.rank));
      const int code = engine::run_rank(rank);
      if (code != 0) throw CLI::RuntimeError(code);
      return {};
    });
  });
}

void add_encoder(CLI::App& app) {
  struct Options {
    InstanceOptions instance;
    std::uint32_t machine = 0, encoder = 0;
    std::string python;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("encoder", "one vision encoder (an OCR whose text becomes embedding rows)");
  add_instance_options(*command, options->instance);
  command->add_option("--machine", options->machine, "index of its vision machine")->required();
  command->add_option("--encoder", options->encoder, "index on the machine")->required();
  command->add_option("--python", options->python, "interpreter with the trimtab package; default: .venv's");
  command->callback([options] {
    run_loaded(options->instance, [&](const Instance& instance) {
      vision::EncoderOptions encoder;
      encoder.control_socket = instance.runtime_dir + "/control.sock";
      encoder.id = {model::MachineId{options->machine}, options->encoder};
      encoder.model_path = instance.model_path;
      encoder.python = options->python.empty() ? default_python() : options->python;
      encoder.shm_dir = instance.shm_dir;
      obs::start_log("vision " + std::to_string(options->machine) + "." + std::to_string(options->encoder));
      return vision::run_encoder(encoder, stop_on_signals());
    });
  });
}

base::Status run_kv_loader(const Instance& instance, const std::string& socket) {
  kv_pool::LoaderOptions loader;
  loader.socket_path = socket.empty() ? instance.runtime_dir + "/kv.sock" : socket;
  const model::PoolConfig& pool = instance.config.pool;
  loader.targets = pool_targets_of(instance);
  loader.memory_bytes = static_cast<std::uint64_t>(pool.memory_bytes);
  loader.file_bytes = static_cast<std::uint64_t>(pool.file_bytes);
  loader.racks.assign(pool.racks.begin(), pool.racks.end());
  loader.eviction = pool.eviction;
  if (pool.ttl_s > 0) loader.ttl = base::Nanos{pool.ttl_s * 1'000'000'000};
  const policy::CostModel cost(instance.profile);
  if (pool.eviction_saves == "time") loader.cost = &cost;
  loader.writes_all = pool.write == "all";
  loader.kv = instance.profile.kv;
  TRIMTAB_TRY(check_pool(instance, "kv-loader"));
  // Alone, it has no `serve` that made the directory.
  if (socket.empty()) TRIMTAB_TRY(make_own_directory(instance.runtime_dir));
  obs::start_log("kv-loader");
  return kv_pool::run_loader(loader, stop_on_signals());
}

void add_kv_loader(CLI::App& app) {
  struct Options {
    InstanceOptions instance;
    std::string socket;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("kv-loader",
                         "the KV pool of this machine: shared memory over striped storage\n\n"
                         "  trimtab kv-loader --config cluster.toml                          "
                         "  # alone; `trimtab serve` starts its own\n"
                         "  trimtab kv-loader --config cluster.toml --socket /run/kv.sock    "
                         "  # alone, for `trimtab pool --loader`\n\n"
                         "It has started when the socket is there, and says nothing else unless "
                         "something is the matter.");
  add_instance_options(*command, options->instance);
  command->add_option("--socket", options->socket,
                      "where users find it; default: where `serve` would have it");
  command->callback([options] {
    run_loaded(
        options->instance, [&](const Instance& instance) { return run_kv_loader(instance, options->socket); },
        /*needs_model=*/false);
  });
}

void add_kv_state(CLI::App& app) {
  struct Options {
    InstanceOptions instance;
    std::uint32_t machine = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("kv-state", "one machine's window snapshots, for models with sliding-window layers");
  add_instance_options(*command, options->instance);
  command->add_option("--machine", options->machine, "its number, below window_state.machines")->required();
  command->callback([options] {
    run_loaded(options->instance, [&](const Instance& instance) {
      kv_state::StateHostOptions host;
      host.machine = options->machine;
      host.memory_bytes = base::Bytes{instance.config.window_state.memory_bytes};
      host.epoch_path = instance.state_dir + "/window-state-" + std::to_string(host.machine) + ".epoch";
      host.keep_socket = kv_state::keep_socket_path(instance.runtime_dir, host.machine);
      host.control_socket = instance.runtime_dir + "/control.sock";
      obs::start_log("kv-state " + std::to_string(host.machine));
      return kv_state::run_state_host(host, stop_on_signals());
    });
  });
}

}  // namespace

void add_roles(CLI::App& app) {
  add_gateway(app);
  add_engine(app);
  add_encoder(app);
  add_kv_loader(app);
  add_kv_state(app);
}

}  // namespace trimtab::apps
