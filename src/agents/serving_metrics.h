#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agent.h"
#include "agents/request_state.h"
#include "base/metrics.h"
#include "cluster/records.h"
#include "cluster/status.h"
#include "kv/hit_rule.h"
#include "kv_pool/pool_stats.h"
#include "obs/registry.h"
#include "policy/cost/drift.h"

namespace trimtab::agents {

/// Help texts and buckets of every metric below.
void describe_metrics(obs::Registry& registry);

/// What the host reports to the dashboard. Counters as things happen; gauges when `sample` is called.
class ServingMetrics {
 public:
  explicit ServingMetrics(base::Metrics& metrics) : metrics_(metrics) {}

  void on_record(const cluster::Record& record);
  void on_prefill_step(const cluster::PrefillStepped& step);
  void on_match(base::TokenCount tokens, base::TokenCount hit);
  void on_match_failed();
  /// The hit of a request has been read, or never will be; once a request.
  void on_hit(std::string_view outcome, base::TokenCount prompt, base::TokenCount hit);
  /// The same hit, of a model with sliding-window layers.
  void on_window(const kv::Hit& hit);
  void on_swap_in(const SwapIn& swap);
  void on_token(const RequestState& request, base::Nanos now);
  /// `outcome`: stop, length, cancelled, or the name of an error code.
  void on_end(const RequestState& request, const std::string& outcome);
  void on_lost(const cluster::Place& place);

  void sample(const cluster::ClusterStatus& status, std::size_t requests, std::size_t encodings,
              std::uint64_t log_bytes_dropped);
  /// The pool's own counters; nothing when it does not answer.
  void sample(const std::optional<kv_pool::PoolStats>& pool);

  struct Drift {
    policy::DriftMonitor monitor;
    bool alarmed = false;
    std::uint64_t alarms = 0;
  };
  struct SwapInTotals {
    std::uint64_t requests = 0, thrown_tokens = 0;
    base::Nanos step, stalled;
  };
  const SwapInTotals& swap_in() const { return swap_in_; }
  /// Predicted against actual step cost, by prefill engine.
  const std::map<model::EngineId, Drift>& drift() const { return drift_; }

 private:
  void sample(const cluster::EngineStatus& engine, const cluster::RankStatus& rank);
  base::Metrics& metrics_;
  std::map<model::EngineId, Drift> drift_;
  SwapInTotals swap_in_;
};

std::string role_name(model::Role role);

}  // namespace trimtab::agents
