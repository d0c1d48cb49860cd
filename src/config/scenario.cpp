#include "config/scenario.h"

#include <fmt/format.h>

#include "config/cluster_config.h"
#include "config/fault_plan.h"
#include "config/profile.h"
#include "config/scenario_experts.h"

namespace trimtab::config {
namespace {

constexpr std::int64_t kDayMs = 86'400'000;

/// What a fleet has where a laptop's configuration has little.
model::ClusterConfig fleet() {
  model::ClusterConfig cluster;
  cluster.model.profile = "deepseek-v4.1-flash";
  cluster.gateway.requests_in_flight_max = cluster.gateway.requests_queued_max = 1'000'000;
  cluster.gateway.queue_quota_limit_ms = kDayMs;
  cluster.prefill.engines = 4;
  cluster.prefill.ranks = 4;
  cluster.prefill.kv_blocks = 1 << 16;
  // One queue by deadline: the most capacity of what needs no new kernels (docs/policies/prefill.md).
  cluster.prefill.order = "edf";
  cluster.prefill.tier_bounds_tokens.clear();
  cluster.prefill.lease_ms = kDayMs;  // simulated engines fall silent only by a fault
  cluster.decode.groups = 1;
  cluster.decode.ranks = 32;
  cluster.decode.kv_blocks = 1 << 14;
  cluster.decode.max_running = 256;
  return cluster;
}

void read_simulation(StrictTable table, model::Scenario& out) {
  std::size_t speed = out.speed == model::SimulationSpeed::kExact ? 0 : 1;
  table.read_choice("speed", speed, {"exact", "fast"});
  out.speed = speed == 0 ? model::SimulationSpeed::kExact : model::SimulationSpeed::kFast;
  std::int64_t report_ms = out.report_interval.value / 1'000'000,
               message_us = out.network.message.value / 1'000;
  table.read("report_interval_ms", report_ms, 1, kDayMs);
  out.report_interval = base::Nanos{report_ms * 1'000'000};
  table.read("message_us", message_us, 0, 1'000'000'000);
  out.network.message = base::Nanos{message_us * 1'000};
  table.read("hand_over_bytes_per_s", out.network.hand_over_bytes_per_s, 1.0, 1e15);
  table.read("machine_network_bytes_per_s", out.network.machine_bytes_per_s, 0.0, 1e15);
  table.read("machine_ranks", out.network.machine_ranks, 1, 65'536);
  table.read("pool", out.pool.enabled);
  table.read("pool_capacity_blocks", out.pool.capacity_blocks, 0, 1LL << 40);
  table.read("pool_read_bytes_per_s", out.pool.read_bytes_per_s, 1.0, 1e15);
  table.read("pool_layerwise", out.pool.layerwise);
  table.read("prefill_expert_balance", out.prefill.expert_balance, 1.0, 1e6);
  table.read("cost_error", out.prefill.cost_error, 0.0, 3.0);
  table.read("context_parallel_communication", out.prefill.context_parallel_communication, 0.0, 100.0);
  table.read("prefill_speaks_between_steps", out.prefill.speaks_between_steps);
  table.read("decode_expert_balance", out.decode.expert_balance, 1.0, 1e6);
  table.read("tokens_per_step", out.decode.tokens_per_step, 1.0, 64.0);
  table.read("overlap", out.overlap.enabled);
  table.read("prefill_network_ns_per_token", out.overlap.prefill_network_ns_per_token, 0.0, 1e9);
  read_experts(table.table("experts"), out.experts);
  read_verify(table.table("verify"), out.verify);
}

}  // namespace

base::Result<model::Scenario> parse_scenario(std::string_view text, const std::string& origin,
                                             const std::string& profiles_dir) {
  auto root = StrictTable::parse(text, origin);
  if (!root) return tl::unexpected<base::Error>(root.error());
  model::Scenario scenario;
  scenario.cluster = fleet();
  scenario.cluster.path = origin;
  read_cluster(*root, scenario.cluster);
  scenario.seed = scenario.cluster.seed;
  read_simulation(root->table("simulation"), scenario);
  read_cluster_parts(root->table("simulation"), scenario);
  read_faults(*root, scenario.faults);
  const bool own_scope = root->table("prefill").has("quota_scope");
  for (const char* section : {"prefill", "decode"})
    if (root->table(section).has("kv_bytes"))
      root->table(section).reject("kv_bytes", "a simulation takes a rank's kv_blocks, not kv_bytes");
  TRIMTAB_TRY(root->finish());
  auto profile = load_profile(scenario.cluster.model.profile, profiles_dir);
  if (!profile) return tl::unexpected<base::Error>(profile.error());
  scenario.profile = std::move(*profile);
  if (!own_scope) scenario.cluster.prefill.quota_scope = scenario.profile.quota_scope;
  return scenario;
}

base::Result<model::Scenario> load_scenario(const std::string& path, const std::string& profiles_dir) {
  const auto text = read_text(path);
  if (!text) return tl::unexpected<base::Error>(text.error());
  return parse_scenario(*text, path, profiles_dir);
}

}  // namespace trimtab::config
