#include "agents/status_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace trimtab::agents {

using nlohmann::json;

namespace {

json millis(std::int64_t span_ns) {
  if (span_ns == INT64_MAX) return nullptr;
  return static_cast<double>(span_ns) * 1e-6;
}

json rank_json(model::Role role, const cluster::RankStatus& rank, const MemberStatus& member) {
  json object = {{"rank", rank.place.rank},
                 {"connected", member.connected},
                 {"serving", rank.heard},
                 {"pid", member.pid},
                 {"requests", rank.requests},
                 {"steps", member.steps},
                 {"last_step_actual_ms", millis(member.actual_ns)}};
  if (role == model::Role::kVision) {
    object["patches_in_flight"] = rank.patches;
    return object;
  }
  object["blocks_total"] = member.blocks_total;
  object["blocks_free"] = member.blocks_free;
  object["stored_blocks"] = member.stored_blocks;
  if (role == model::Role::kPrefill) {
    object["last_step_predicted_ms"] = millis(member.predicted_ns);
    object["last_vote_ms"] = millis(member.vote_ns);
    object["last_budget_min_ms"] = millis(member.budget_ns);
    object["waiting"] = member.waiting;
    object["waiting_quota_ms"] = millis(member.waiting_ns);
  } else {
    object["running"] = rank.running;
    object["kv_tokens"] = rank.kv.value;
    object["reported_running"] = member.running;
    object["reported_kv_tokens"] = member.kv_tokens;
  }
  return object;
}

json cost_json(const ServingMetrics::Drift& drift) {
  const policy::DriftVerdict verdict = drift.monitor.verdict();
  return {{"steps", verdict.steps},
          {"error_ratio", verdict.error_ratio_mean},
          {"bias_ratio", verdict.bias_ratio_mean},
          {"alarm", verdict.alarm},
          {"alarms", drift.alarms}};
}

json engine_json(const StatusParts& parts, const cluster::EngineStatus& engine) {
  json object = {{"role", role_name(engine.role)},
                 {"engine", engine.engine.value},
                 {"serving", engine.serving},
                 {"draining", engine.draining},
                 {"ranks", json::array()}};
  if (engine.role == model::Role::kPrefill) {
    object["tiers"] = engine.tiers;
    object["quota_left_ms"] = engine.quota_left ? millis(engine.quota_left->value) : json();
    const auto drift = parts.drift.find(engine.engine);
    object["cost"] = drift == parts.drift.end() ? json() : cost_json(drift->second);
  }
  const auto members = parts.members.find({engine.role, engine.engine});
  for (const cluster::RankStatus& rank : engine.ranks) {
    const bool known = members != parts.members.end() && rank.place.rank < members->second.size();
    object["ranks"].push_back(
        rank_json(engine.role, rank, known ? members->second[rank.place.rank] : MemberStatus{}));
  }
  return object;
}

json shadow_json(const ShadowDecode& shadow) {
  const shadow::DecodeReplayReport report = shadow.report();
  const auto even = [](const shadow::Evenness& of) {
    return json{{"kv_peak_over_mean", of.kv_peak_over_mean},
                {"running_peak_over_mean", of.running_peak_over_mean}};
  };
  json changes = json::array();
  for (const auto& change : report.changes) {
    changes.push_back({{"request", change.request.value},
                       {"live", {{"group", change.recorded.engine.value}, {"rank", change.recorded.rank}}},
                       {"shadow", {{"group", change.replayed.engine.value}, {"rank", change.replayed.rank}}},
                       {"reason", change.reason}});
  }
  return {{"decode_policy", shadow.policy()}, {"decisions", report.decisions},
          {"changed", report.changed},        {"held", report.held},
          {"live", even(report.recorded)},    {"shadow", even(report.replayed)},
          {"first_changes", changes}};
}

/// What a person should look at, in words.
json alarms_of(const StatusParts& parts) {
  json alarms = json::array();
  for (const cluster::EngineStatus& engine : parts.cluster.engines) {
    if (engine.serving) continue;
    alarms.push_back(fmt::format("{} {} is not serving: a rank of it is missing", role_name(engine.role),
                                 engine.engine.value));
  }
  for (const auto& [engine, drift] : parts.drift) {
    const policy::DriftVerdict verdict = drift.monitor.verdict();
    if (verdict.alarm) alarms.push_back(fmt::format("prefill engine {}: {}", engine.value, verdict.reason));
  }
  for (const obs::ProcessEnd& end : parts.ends)
    if (obs::is_alarming(end, parts.now)) alarms.push_back(obs::to_words(end));
  if (!parts.pool) alarms.push_back("the KV pool does not answer: every prompt is computed in full");
  if (parts.pool && parts.pool->memory_only != 0)
    alarms.push_back("the KV pool has no working file tier: hits will not survive a restart");
  if (parts.pool && parts.pool->targets_dead > 0)
    alarms.push_back(fmt::format(
        "{} of the KV pool's {} targets do not answer: {}", parts.pool->targets_dead, parts.pool->targets,
        parts.pool->targets_dead <= 2 ? "blocks are read from the others" : "many blocks cannot be read"));
  if (parts.log_bytes_dropped > 0)
    alarms.push_back(
        fmt::format("the decision log lost {} bytes: is its disk full?", parts.log_bytes_dropped));
  return alarms;
}

json ended_json(const std::vector<obs::ProcessEnd>& ends) {
  json ended = json::array();
  for (const obs::ProcessEnd& end : ends) {
    ended.push_back({{"process", end.name},
                     {"times", end.times},
                     {"in_a_row", end.in_a_row},
                     {"how", end.how},
                     {"said", end.said},
                     {"log", end.log},
                     {"running", end.started_ns != 0}});
  }
  return ended;
}

json audits_json(const DriftAudits& audits) {
  const DriftAudits::Totals& totals = audits.totals();
  const auto dropped = [&](DriftAudits::Drop why) { return totals.dropped[static_cast<std::size_t>(why)]; };
  const auto mean = [&](double sum) {
    return totals.done == 0 ? json() : json(sum / static_cast<double>(totals.done));
  };
  return {{"per_1000", audits.per_1000()},
          {"done", totals.done},
          {"waiting", audits.waiting()},
          {"running", audits.running()},
          {"dropped",
           {{"full", dropped(DriftAudits::Drop::kFull)},
            {"old", dropped(DriftAudits::Drop::kOld)},
            {"failed", dropped(DriftAudits::Drop::kFailed)},
            {"images", dropped(DriftAudits::Drop::kImages)}}},
          {"drift_mean", mean(totals.relative_sum)},
          {"drift_max", totals.relative_max},
          {"difference_max", totals.largest_max},
          {"same_token_ratio", mean(static_cast<double>(totals.same_token))},
          {"computed_tokens", totals.computed_tokens}};
}

json states_json(const WindowStates& states, const DriftAudits* audits) {
  json machines = json::array();
  for (const WindowStates::MachineLine& line : states.machines()) {
    machines.push_back({{"machine", line.machine},
                        {"endpoint", line.endpoint},
                        {"epoch", line.epoch},
                        {"snapshots", line.snapshots}});
  }
  return {{"mode", states.mode() == kv::WindowMode::kExact ? "exact" : "approximate"},
          {"machines", std::move(machines)},
          {"audits", audits == nullptr ? json() : audits_json(*audits)}};
}

}  // namespace

std::string status_json(const StatusParts& parts) {
  const cluster::ClusterStatus& cluster = parts.cluster;
  json root;
  root["ready"] = cluster.ready;
  root["decode_policy"] = cluster.decode_policy;
  root["requests"] = {
      {"in_flight", parts.requests},          {"matching", cluster.matching}, {"queued", cluster.queued},
      {"prefilling", cluster.prefilling},     {"decoding", cluster.decoding}, {"held", cluster.held},
      {"releases", cluster.releases_pending}, {"oldest", json::array()}};
  for (const RequestLine& line : parts.oldest) {
    root["requests"]["oldest"].push_back({{"name", line.name},
                                          {"id", line.id.value},
                                          {"age_ms", millis(line.age.value)},
                                          {"prompt_tokens", line.prompt_tokens},
                                          {"output_tokens", line.output_tokens}});
  }
  root["tiers"] = json::array();
  for (std::size_t tier = 0; tier < cluster.tiers.size(); ++tier) {
    const cluster::TierStatus& status = cluster.tiers[tier];
    root["tiers"].push_back(
        {{"tier", tier},
         {"bound_tokens", status.bound.value == INT64_MAX ? json() : json(status.bound.value)},
         {"queued", status.queued},
         {"queued_quota_ms", millis(status.queued_quota.value)}});
  }
  root["engines"] = json::array();
  for (const cluster::EngineStatus& engine : cluster.engines)
    root["engines"].push_back(engine_json(parts, engine));
  root["pool"] = parts.pool ? json::parse(kv_pool::to_json(*parts.pool), nullptr, false) : json();
  root["hits"] = {{"skipped", parts.hits.skipped},
                  {"misses", parts.hits.misses},
                  {"hits", parts.hits.hits},
                  {"stale", parts.hits.stale},
                  {"fallbacks", parts.hits.fallbacks},
                  {"abandoned", parts.hits.abandoned},
                  {"prompt_tokens", parts.hits.prompt_tokens},
                  {"promised_tokens", parts.hits.promised_tokens},
                  {"hit_tokens", parts.hits.hit_tokens},
                  {"snapshots_used", parts.hits.snapshots_used},
                  {"approximate", parts.hits.approximate},
                  {"window_tokens_recomputed", parts.hits.window_tokens_recomputed}};
  const double step = static_cast<double>(parts.swap_in.step.value);
  root["swap_in"] = {
      {"requests", parts.swap_in.requests},
      {"step_ms", millis(parts.swap_in.step.value)},
      {"stalled_ms", millis(parts.swap_in.stalled.value)},
      {"overlap", step > 0 ? json(1 - static_cast<double>(parts.swap_in.stalled.value) / step) : json()},
      {"thrown_tokens", parts.swap_in.thrown_tokens}};
  root["window_state"] = parts.states == nullptr ? json() : states_json(*parts.states, parts.audits);
  root["encodings_in_flight"] = parts.encodings;
  root["alarms"] = alarms_of(parts);
  root["ended"] = ended_json(parts.ends);
  root["shadow"] = parts.shadow != nullptr ? shadow_json(*parts.shadow) : json();
  root["decision_log"] = {{"dropped_bytes", parts.log_bytes_dropped}};
  // Names come from clients: never fail on their bytes.
  return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace trimtab::agents
