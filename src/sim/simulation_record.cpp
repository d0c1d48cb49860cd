// What a recorder gets to see of a simulation.
#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

/// "0-1" as the tiers that an engine serves; empty: none.
std::vector<bool> tiers_of(const std::string& range, std::size_t tiers) {
  std::vector<bool> serves(tiers);
  if (range.empty()) return serves;
  const std::size_t dash = range.find('-');
  const auto first = static_cast<std::size_t>(std::stoul(range));
  const std::size_t last =
      dash == std::string::npos ? first : static_cast<std::size_t>(std::stoul(range.substr(dash + 1)));
  for (std::size_t t = first; t <= last && t < tiers; ++t) serves[t] = true;
  return serves;
}

}  // namespace

void Simulation::record(Recorder& recorder) {
  const model::ClusterConfig& cluster = scenario_.cluster;
  RecorderShape shape;
  shape.prefill_engines = cluster.prefill.engines;
  shape.prefill_ranks = cluster.prefill.ranks;
  shape.decode_groups = cluster.decode.groups;
  shape.decode_ranks = cluster.decode.ranks;
  shape.queue_tiers = cluster_->status().tiers.size();
  shape.report_bounds_tokens = scenario_.report_bounds_tokens;
  recorder.start(std::move(shape));
  recorder_ = &recorder;
}

void Simulation::record_sample(Nanos until) {
  const cluster::ClusterStatus status = cluster_->status();
  RecorderSample sample;
  for (const cluster::TierStatus& tier : status.tiers) sample.queued.push_back(tier.queued);
  for (const cluster::EngineStatus& engine : status.engines) {
    if (engine.role == model::Role::kPrefill)
      sample.engine_tiers.push_back(tiers_of(engine.tiers, status.tiers.size()));
  }
  for (const DecodeGroup& group : decode_) {
    for (std::uint32_t r = 0; r < scenario_.cluster.decode.ranks; ++r) {
      sample.decode_running.push_back(static_cast<double>(group.running(r)));
      sample.decode_kv.push_back(group.kv(r));
    }
  }
  recorder_->sample(until, sample);
}

}  // namespace trimtab::sim
