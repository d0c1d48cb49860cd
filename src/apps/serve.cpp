#include <fmt/format.h>
#include <signal.h>
#include <sys/statvfs.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "agents/shadow_decode.h"
#include "apps/commands.h"
#include "apps/gateway_role.h"
#include "apps/instance.h"
#include "apps/place.h"
#include "apps/pool_preflight.h"
#include "apps/probe.h"
#include "config/profile.h"
#include "engine/calibrate.h"
#include "engine/llama_weights.h"
#include "engine/rank_state.h"
#include "kv_target/file/owner_lock.h"
#include "policy/decode/policy.h"
#include "supervisor/supervisor.h"

namespace trimtab::apps {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kStateRoomMin = 16LL << 20;  // bytes

/// Arguments that make a child load the very same instance.
std::vector<std::string> child(const Instance& instance, const std::string& role) {
  return {fs::read_symlink("/proc/self/exe"),
          role,
          "--config",
          instance.config.path,
          "--port",
          std::to_string(instance.config.gateway.port),
          "--state-dir",
          instance.state_dir,
          "--model-path",
          instance.model_path,
          "--profiles-dir",
          instance.profiles_dir};
}

void add_group(const Instance& instance, const std::string& role, std::uint32_t engine, std::uint32_t ranks,
               std::vector<supervisor::ProcessSpec>& plan) {
  const std::string group = fmt::format("{} {}", role, engine);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    supervisor::ProcessSpec spec{fmt::format("{} {}.{}", role, engine, rank),
                                 group,
                                 child(instance, "engine"),
                                 {fmt::format("{}/group-{}{}", instance.shm_dir, role[0], engine),
                                  fmt::format("{}/kv-{}{}-{}.*", instance.shm_dir, role[0], engine, rank)},
                                 0,
                                 1};
    for (const std::string& argument :
         {std::string("--role"), role, std::string("--engine"), std::to_string(engine), std::string("--rank"),
          std::to_string(rank)}) {
      spec.arguments.push_back(argument);
    }
    plan.push_back(std::move(spec));
  }
}

std::vector<supervisor::ProcessSpec> make_plan(const Instance& instance) {
  const model::ClusterConfig& config = instance.config;
  std::vector<supervisor::ProcessSpec> plan;
  plan.push_back({"kv-loader", "kv-loader", child(instance, "kv-loader"), {}, 0, 2});
  plan.push_back({"gateway", "gateway", child(instance, "gateway"), {}, 0, 0, kDrainLimit});
  const std::uint32_t states = instance.profile.kv.window_tokens > 0 ? config.window_state.machines : 0;
  for (std::uint32_t m = 0; m < states; ++m) {
    const std::string name = fmt::format("kv-state {}", m);
    supervisor::ProcessSpec spec{name, name, child(instance, "kv-state"), {}, 0, 2};
    spec.arguments.push_back("--machine");
    spec.arguments.push_back(std::to_string(m));
    plan.push_back(std::move(spec));
  }
  for (std::uint32_t e = 0; e < config.prefill.engines; ++e)
    add_group(instance, "prefill", e, config.prefill.ranks, plan);
  for (std::uint32_t g = 0; g < config.decode.groups; ++g)
    add_group(instance, "decode", g, config.decode.ranks, plan);
  for (std::uint32_t m = 0; m < config.vision.machines; ++m) {
    for (std::uint32_t e = 0; e < config.vision.encoders; ++e) {
      const std::string name = fmt::format("vision {}.{}", m, e);
      supervisor::ProcessSpec spec{name, name, child(instance, "encoder"), {}, 5, 1};
      for (const std::string& argument :
           {std::string("--machine"), std::to_string(m), std::string("--encoder"), std::to_string(e)}) {
        spec.arguments.push_back(argument);
      }
      plan.push_back(std::move(spec));
    }
  }
  return plan;
}

/// A model that is not one would make every child fail, one after another; it fails here first, once.
base::Status check_model(const Instance& instance) {
  auto weights = engine::LlamaWeights::load(instance.model_path);
  if (!weights) return tl::unexpected(weights.error());
  return engine::check_window(weights->shape(), instance.profile);
}

/// Policies that nobody knows would end the gateway again and again.
base::Status check_policies(const Instance& instance) {
  const auto live = policy::make_decode_policy(policy::decode_config(instance.config.decode));
  if (!live) return tl::unexpected(live.error());
  const auto shadow = agents::ShadowDecode::make(instance.config);
  if (!shadow) return tl::unexpected(shadow.error());
  return {};
}

/// KV arenas and the pool's memory tier are shared memory; each encoder's OCR needs about 400 MB of its own.
base::Status check_room(const Instance& instance) {
  const model::ClusterConfig& c = instance.config;
  const std::int64_t blocks = c.prefill.kv_blocks * c.prefill.engines * c.prefill.ranks +
                              c.decode.kv_blocks * c.decode.groups * c.decode.ranks;
  const model::KvLayout& kv = instance.profile.kv;
  const std::int64_t ranks =
      std::int64_t{c.prefill.engines} * c.prefill.ranks + std::int64_t{c.decode.groups} * c.decode.ranks;
  const std::int64_t slots = kv::StateSlots::count_for(static_cast<std::uint32_t>(c.decode.max_running));
  const std::int64_t state = kv.window_tokens > 0 ? ranks * slots * kv.state_bytes.value : 0;
  const std::int64_t shared = blocks * kv.block_bytes.value + c.pool.memory_bytes + state;
  const std::int64_t encoders =
      static_cast<std::int64_t>(c.vision.machines) * c.vision.encoders * (400LL << 20);
  return supervisor::check_memory(shared + encoders + (200LL << 20), shared, "/dev/shm");
}

/// Holds the state directory for this supervisor; two would write over each other's pool.
base::Result<kv_target::file::Descriptor> lock_state(const std::string& state_dir) {
  std::error_code error;
  fs::create_directories(state_dir, error);
  if (error) {
    return base::fail(base::Code::kIo,
                      fmt::format("cannot create the state directory {}: {}; choose another with --state-dir",
                                  state_dir, error.message()),
                      "trimtab");
  }
  auto lock = kv_target::file::take_lock(state_dir + "/lock");
  if (!lock && lock.error().is_held()) {
    return base::fail(
        base::Code::kUnavailable,
        fmt::format("the state directory {} is in use by another trimtab ({}); stop it or choose "
                    "another with --state-dir",
                    state_dir, lock.error().held),
        "trimtab");
  }
  if (!lock) {
    return base::fail(
        base::Code::kIo,
        fmt::format("cannot write and lock the state directory {}: {}; choose another with --state-dir",
                    state_dir, std::strerror(lock.error().reason)),
        "trimtab");
  }
  struct statvfs room {};
  if (fstatvfs(lock->get(), &room) == 0) {
    const auto free = static_cast<std::int64_t>(room.f_bavail * room.f_frsize);
    if (free < kStateRoomMin) {
      // Said here, because the logs in which the processes would say it lie on that same disk.
      return base::fail(
          base::Code::kResourceExhausted,
          fmt::format("the disk of the state directory {} has {} MB free, logs and answers need {}; "
                      "free some or choose another with --state-dir",
                      state_dir, free >> 20, kStateRoomMin >> 20),
          "trimtab");
    }
  }
  return std::move(*lock);
}

base::Status ensure_calibrated(const Instance& instance) {
  if (fs::exists(instance.calibration_path) ||
      !std::holds_alternative<model::QuadraticCost>(instance.profile.cost))
    return {};
  std::cerr << "trimtab: first start on this machine: measuring what a prefill step costs (some seconds)\n";
  auto measured = engine::calibrate(instance.model_path, instance.config.engine.ffn_experts);
  if (!measured) return tl::unexpected(measured.error());
  std::ofstream file(instance.calibration_path + ".part");
  file << config::cost_toml(measured->cost, {measured->machine, measured->samples, measured->error_ratio_mean,
                                             measured->error_ratio_worst});
  file.close();
  if (!file) return base::fail(base::Code::kIo, "cannot write " + instance.calibration_path, "trimtab");
  fs::rename(instance.calibration_path + ".part", instance.calibration_path);
  return {};
}

base::Status serve(const InstanceOptions& options) {
  auto instance = load_instance(options);
  if (!instance) return tl::unexpected(instance.error());
  const model::GatewayConfig& gateway = instance->config.gateway;
  TRIMTAB_TRY(supervisor::check_port_free(gateway.host, gateway.port));
  TRIMTAB_TRY(check_policies(*instance));
  TRIMTAB_TRY(check_model(*instance));
  TRIMTAB_TRY(check_room(*instance));
  const auto state = lock_state(instance->state_dir);
  if (!state) return tl::unexpected(state.error());
  // A loader that cannot open its pool would end again and again, and every request would be computed.
  TRIMTAB_TRY(check_pool(*instance, "trimtab: pool"));
  TRIMTAB_TRY(ensure_calibrated(*instance));
  // From here on a signal waits until `supervise` takes it: it would leave the place behind, and a thread
  // that did not block it would end everything without order.
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&handled, signal);
  pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  const auto place = Place::take(*instance);
  if (!place) return tl::unexpected(place.error());
  supervisor::SupervisorOptions supervision;
  supervision.plan = make_plan(*instance);
  supervision.log_dir = instance->state_dir + "/logs";
  supervision.ends_dir = instance->runtime_dir;
  std::cerr << fmt::format("trimtab: starting {} processes; their logs are in {}\n", supervision.plan.size(),
                           supervision.log_dir);
  // The probe thread only reads a socket; it says when clients may come.
  std::atomic<bool> ended{false};
  std::thread probe([&] {
    while (!ended && http_status(gateway.host, gateway.port, "/health") != 200)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (!ended) std::cerr << fmt::format("trimtab: ready at http://{}:{}\n", gateway.host, gateway.port);
  });
  // Starts of the first hour and exits of the last are no news; what happens in between is.
  const auto on_change = [&](const std::string& name, const std::string& what) {
    if (what != "started" && what != "exited with 0")
      std::cerr << fmt::format("trimtab: {} {}\n", name, what);
  };
  const base::Status status = supervisor::supervise(supervision, on_change);
  ended = true;
  probe.join();
  return status;
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<InstanceOptions>();
  CLI::App* command = app.add_subcommand(
      "serve", "start every process of a configuration on this machine and watch over them");
  add_instance_options(*command, *options);
  command->callback([options] { finish(serve(*options)); });
}

}  // namespace trimtab::apps
