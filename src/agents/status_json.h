#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agents/agent.h"
#include "agents/drift_audits.h"
#include "agents/serving_metrics.h"
#include "agents/shadow_decode.h"
#include "agents/window_states.h"
#include "cluster/status.h"
#include "kv/hit_counters.h"
#include "kv_pool/pool_stats.h"
#include "obs/process_ends.h"

namespace trimtab::agents {

inline constexpr std::size_t kStatusRequestsMax = 32;

struct RequestLine {
  std::string name;
  model::RequestId id;
  base::Nanos age;
  std::uint32_t prompt_tokens = 0, output_tokens = 0;
};

struct StatusParts {
  cluster::ClusterStatus cluster;
  std::map<std::pair<model::Role, model::EngineId>, std::vector<MemberStatus>> members;
  const std::map<model::EngineId, ServingMetrics::Drift>& drift;
  std::optional<kv_pool::PoolStats> pool;
  kv::HitTotals hits;
  ServingMetrics::SwapInTotals swap_in;
  std::size_t requests = 0, encodings = 0;
  std::uint64_t log_bytes_dropped = 0;
  std::vector<RequestLine> oldest;  // at most kStatusRequestsMax
  const ShadowDecode* shadow = nullptr;
  const WindowStates* states = nullptr;  // of models with a window
  const DriftAudits* audits = nullptr;
  std::vector<obs::ProcessEnd> ends{};
  base::Nanos now{0};
};

/// `GET /debug/status`:
///
///   {"ready", "decode_policy",
///    "requests": {"in_flight", "matching", "queued", "prefilling", "decoding", "held", "oldest": [...]},
///    "tiers": [{"tier", "bound_tokens", "queued", "queued_quota_ms"}],
///    "engines": [{"role", "engine", "serving", "draining", "tiers", "quota_left_ms", "cost": {...},
///                 "ranks": [{"rank", "connected", "pid", ...}]}],
///    "hits": {"skipped", "misses", "hits", "stale", "fallbacks", "abandoned", "prompt_tokens",
///             "promised_tokens", "hit_tokens", "snapshots_used", "approximate",
///             "window_tokens_recomputed"}: each request once, when its hit has been read,
///    "swap_in": {"requests", "step_ms", "stalled_ms", "overlap" | null, "thrown_tokens"}: computed from
///    before
///               all of the hit had come; the overlap is 1 - stalled / step,
///    "window_state": {"mode", "machines": [{"machine", "endpoint", "epoch", "snapshots"}],
///                     "audits": {"per_1000", "done", "waiting", "running", "dropped": {"full", "old",
///                                "failed", "images"}, "drift_mean" | null, "drift_max", "difference_max",
///                                "same_token_ratio" | null, "computed_tokens"} | null} | null,
///    "pool": {...} | null, "encodings_in_flight", "alarms": [text...], "decision_log": {"dropped_bytes"},
///    "ended": [{"process", "times", "in_a_row", "how", "said", "log", "running"}]: untold, of those that the
///             supervisor of `trimtab serve` watches,
///    "shadow": {"decode_policy", "decisions", "changed", "held", "live": {"kv_peak_over_mean",
///               "running_peak_over_mean"}, "shadow": {...}, "first_changes": [...]} | null}
std::string status_json(const StatusParts& parts);

}  // namespace trimtab::agents
