#include "agents/serving_metrics.h"

#include "agents/drift_audits.h"
#include "agents/shadow_decode.h"

namespace trimtab::agents {

using base::Nanos;

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

std::string role_name(model::Role role) {
  switch (role) {
    case model::Role::kPrefill:
      return "prefill";
    case model::Role::kDecode:
      return "decode";
    case model::Role::kVision:
      break;
  }
  return "vision";
}

void describe_metrics(obs::Registry& registry) {
  const std::vector<double> latency = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
  registry.describe("trimtab_requests_total", "Requests that ended, by outcome.");
  registry.describe("trimtab_requests_in_flight", "Requests that the host holds.");
  registry.describe("trimtab_ttft_seconds", "Submission to first token.", latency);
  registry.describe("trimtab_tpot_seconds", "Mean time per output token after the first, by request.",
                    {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
  registry.describe("trimtab_queue_seconds", "Time in a tier's queue, by lease.", latency);
  registry.describe("trimtab_prefill_queue_depth", "Requests in a tier's queue.");
  registry.describe("trimtab_prefill_queue_quota_seconds", "Predicted compute quota in a tier's queue.");
  registry.describe("trimtab_prefill_pulls_total", "Requests pulled, by prefill engine.");
  registry.describe("trimtab_prefill_cost_error_ratio",
                    "Mean |predicted - actual| / actual, last 100 steps.");
  registry.describe("trimtab_prefill_cost_bias_ratio", "Mean (actual - predicted) / actual, last 100 steps.");
  registry.describe("trimtab_prefill_cost_alarms_total", "Times the cost model went wrong by over 10 %.");
  registry.describe("trimtab_requests_redone_total", "Requests that went back to a queue, by where from.");
  registry.describe("trimtab_decode_holds_total", "Decode choices that found no room.");
  registry.describe("trimtab_pool_hit_tokens_total", "Prompt tokens found in the pool, once a request.");
  registry.describe("trimtab_pool_miss_tokens_total", "Prompt tokens to compute, once a request.");
  registry.describe("trimtab_pool_match_failures_total", "Questions that the pool did not answer: misses.");
  registry.describe(
      "trimtab_prefix_cache_requests_total",
      "Requests by what became of their hit: hit, miss, skipped (too short), stale (a block was "
      "gone), fallback (a block could not be read), abandoned.");
  registry.describe("trimtab_prefix_cache_queries_total", "Prompt tokens of requests whose hit was decided.");
  registry.describe("trimtab_prefix_cache_hits_total", "Of those, tokens read from the pool, not computed.");
  registry.describe(
      "trimtab_window_state_requests_total",
      "Hits of models with sliding-window layers, by what they began from: state (a window state "
      "that was held), approximate (none: one block computed again), exact (none: the whole "
      "window computed again).");
  registry.describe("trimtab_window_tokens_recomputed_total",
                    "Tokens whose blocks were read and that were computed again for their window only.");
  registry.describe("trimtab_swap_in_requests_total",
                    "Requests that were computed from before all of their hit had come.");
  registry.describe("trimtab_swap_in_step_seconds_total", "What the steps took in which that was done.");
  registry.describe("trimtab_swap_in_stalled_seconds_total",
                    "Of that, computing waited for a layer: 1 - stalled / step is the overlap achieved.");
  registry.describe("trimtab_swap_in_thrown_tokens_total",
                    "Tokens that were computed in vain, because a layer of a hit did not come.");
  registry.describe("trimtab_pool_up", "1 when the KV pool answers.");
  registry.describe("trimtab_pool_degraded_reads", "Blocks of which a shard was computed, since its start.");
  registry.describe("trimtab_pool_shards_bad", "Shards found torn, damaged or of another block.");
  registry.describe("trimtab_pool_shards_repaired", "Shards written again.");
  registry.describe("trimtab_pool_targets", "Places for shards.");
  registry.describe("trimtab_pool_targets_dead", "Places for shards that do not answer.");
  registry.describe("trimtab_output_tokens_total", "Tokens given to clients.");
  registry.describe("trimtab_ranks_lost_total", "Ranks and encoders whose connection ended.");
  registry.describe("trimtab_decode_running", "Running requests of a decode rank, reservations included.");
  registry.describe("trimtab_decode_kv_tokens", "KV tokens of a decode rank's requests.");
  registry.describe("trimtab_rank_requests", "Requests that hold something at a rank.");
  registry.describe("trimtab_vision_patches_in_flight", "Image patches given to an encoder, unanswered.");
  registry.describe("trimtab_vision_encodings_in_flight", "Images at encoders.");
  registry.describe("trimtab_engine_serving", "1 when every rank of the engine is there.");
  registry.describe("trimtab_decision_log_dropped_bytes", "Log bytes that the disk refused.");
  DriftAudits::describe_metrics(registry);
  ShadowDecode::describe_metrics(registry);
}

void ServingMetrics::on_record(const cluster::Record& record) {
  if (const auto* lease = std::get_if<cluster::LeaseRecord>(&record.body)) {
    metrics_.observe("trimtab_queue_seconds", base::to_seconds(lease->queue_time));
    metrics_.add("trimtab_prefill_pulls_total", 1, {{"engine", std::to_string(lease->rank.engine.value)}});
  } else if (const auto* back = std::get_if<cluster::RequeueRecord>(&record.body)) {
    metrics_.add("trimtab_requests_redone_total", 1, {{"from", role_name(back->from.role)}});
  } else if (const auto* choice = std::get_if<cluster::DecodeRecord>(&record.body)) {
    if (!choice->winner) metrics_.add("trimtab_decode_holds_total", 1);
  }
}

void ServingMetrics::on_prefill_step(const cluster::PrefillStepped& step) {
  Drift& drift = drift_[step.from.engine];
  drift.monitor.observe(step.predicted, step.actual);
  const policy::DriftVerdict verdict = drift.monitor.verdict();
  const base::Labels labels = {{"engine", std::to_string(step.from.engine.value)}};
  metrics_.set("trimtab_prefill_cost_error_ratio", verdict.error_ratio_mean, labels);
  metrics_.set("trimtab_prefill_cost_bias_ratio", verdict.bias_ratio_mean, labels);
  if (verdict.alarm && !drift.alarmed) {
    ++drift.alarms;
    metrics_.add("trimtab_prefill_cost_alarms_total", 1, labels);
  }
  drift.alarmed = verdict.alarm;
}

void ServingMetrics::on_match(base::TokenCount tokens, base::TokenCount hit) {
  metrics_.add("trimtab_pool_hit_tokens_total", as_double(hit.value));
  metrics_.add("trimtab_pool_miss_tokens_total", as_double((tokens - hit).value));
}

void ServingMetrics::on_match_failed() { metrics_.add("trimtab_pool_match_failures_total", 1); }

void ServingMetrics::on_hit(std::string_view outcome, base::TokenCount prompt, base::TokenCount hit) {
  metrics_.add("trimtab_prefix_cache_requests_total", 1, {{"outcome", std::string(outcome)}});
  if (outcome == "abandoned") return;
  metrics_.add("trimtab_prefix_cache_queries_total", as_double(prompt.value));
  metrics_.add("trimtab_prefix_cache_hits_total", as_double(hit.value));
}

void ServingMetrics::on_window(const kv::Hit& hit) {
  const std::int64_t again = hit.recomputed_tokens();
  if (again > 0) metrics_.add("trimtab_window_tokens_recomputed_total", as_double(again));
  const char* begin = hit.snapshot_blocks > 0 ? "state" : !hit.exact ? "approximate" : "exact";
  if (hit.block_kv_blocks > 0) metrics_.add("trimtab_window_state_requests_total", 1, {{"begin", begin}});
}

void ServingMetrics::on_swap_in(const SwapIn& swap) {
  ++swap_in_.requests;
  swap_in_.step += swap.step;
  swap_in_.stalled += swap.stalled;
  swap_in_.thrown_tokens += swap.thrown_tokens;
  metrics_.add("trimtab_swap_in_requests_total", 1);
  metrics_.add("trimtab_swap_in_step_seconds_total", base::to_seconds(swap.step));
  metrics_.add("trimtab_swap_in_stalled_seconds_total", base::to_seconds(swap.stalled));
  metrics_.add("trimtab_swap_in_thrown_tokens_total", swap.thrown_tokens);
}

void ServingMetrics::sample(const std::optional<kv_pool::PoolStats>& pool) {
  metrics_.set("trimtab_pool_up", pool ? 1 : 0);
  if (!pool) return;
  const std::pair<std::string_view, std::uint64_t> gauges[] = {
      {"trimtab_pool_blocks_in_memory", pool->memory_entries},
      {"trimtab_pool_blocks_in_store", pool->file_entries},
      {"trimtab_pool_blocks_not_durable", pool->dirty_entries},
      {"trimtab_pool_pins", pool->pins},
      {"trimtab_pool_reads_from_memory", pool->gets_memory},
      {"trimtab_pool_reads_from_store", pool->gets_file},
      {"trimtab_pool_reads_stale", pool->gets_stale},
      {"trimtab_pool_reads_refused", pool->gets_refused},
      {"trimtab_pool_evictions_from_memory", pool->memory_evictions},
      {"trimtab_pool_evictions_from_store", pool->file_evictions},
      {"trimtab_pool_write_errors", pool->file_errors},
      {"trimtab_pool_degraded_reads", pool->degraded_reads},
      {"trimtab_pool_shards_bad", pool->shards_bad},
      {"trimtab_pool_shards_repaired", pool->shards_repaired},
      {"trimtab_pool_targets", pool->targets},
      {"trimtab_pool_targets_dead", pool->targets_dead},
  };
  for (const auto& [name, value] : gauges) metrics_.set(name, static_cast<double>(value));
}

void ServingMetrics::on_token(const RequestState& request, Nanos now) {
  metrics_.add("trimtab_output_tokens_total", 1);
  if (!request.first_token_at)
    metrics_.observe("trimtab_ttft_seconds", base::to_seconds(now - request.submitted_at));
}

void ServingMetrics::on_end(const RequestState& request, const std::string& outcome) {
  metrics_.add("trimtab_requests_total", 1, {{"outcome", outcome}});
  if (request.generated() < 2) return;
  const Nanos span = request.last_token_at - *request.first_token_at;
  metrics_.observe("trimtab_tpot_seconds", base::to_seconds(span) / (request.generated() - 1));
}

void ServingMetrics::on_lost(const cluster::Place& place) {
  metrics_.add("trimtab_ranks_lost_total", 1, {{"role", role_name(place.role)}});
}

void ServingMetrics::sample(const cluster::ClusterStatus& status, std::size_t requests, std::size_t encodings,
                            std::uint64_t log_bytes_dropped) {
  metrics_.set("trimtab_requests_in_flight", static_cast<double>(requests));
  metrics_.set("trimtab_vision_encodings_in_flight", static_cast<double>(encodings));
  metrics_.set("trimtab_decision_log_dropped_bytes", static_cast<double>(log_bytes_dropped));
  for (std::size_t tier = 0; tier < status.tiers.size(); ++tier) {
    const base::Labels labels = {{"tier", std::to_string(tier)}};
    metrics_.set("trimtab_prefill_queue_depth", status.tiers[tier].queued, labels);
    metrics_.set("trimtab_prefill_queue_quota_seconds", base::to_seconds(status.tiers[tier].queued_quota),
                 labels);
  }
  for (const cluster::EngineStatus& engine : status.engines) {
    metrics_.set("trimtab_engine_serving", engine.serving ? 1 : 0,
                 {{"role", role_name(engine.role)}, {"engine", std::to_string(engine.engine.value)}});
    for (const cluster::RankStatus& rank : engine.ranks) sample(engine, rank);
  }
}

void ServingMetrics::sample(const cluster::EngineStatus& engine, const cluster::RankStatus& rank) {
  if (engine.role == model::Role::kVision) {
    metrics_.set(
        "trimtab_vision_patches_in_flight", as_double(rank.patches),
        {{"machine", std::to_string(engine.engine.value)}, {"encoder", std::to_string(rank.place.rank)}});
    return;
  }
  const base::Labels labels = {{"role", role_name(engine.role)},
                               {"engine", std::to_string(engine.engine.value)},
                               {"rank", std::to_string(rank.place.rank)}};
  metrics_.set("trimtab_rank_requests", rank.requests, labels);
  if (engine.role != model::Role::kDecode) return;
  metrics_.set("trimtab_decode_running", as_double(rank.running), labels);
  metrics_.set("trimtab_decode_kv_tokens", as_double(rank.kv.value), labels);
}

}  // namespace trimtab::agents
