#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/metrics.h"
#include "model/cluster_config.h"
#include "obs/registry.h"
#include "shadow/decode_replay.h"

namespace trimtab::agents {

/// A second decode policy ([shadow] decode_policy) that decides on the live one's events without effect: how
/// often it would have chosen otherwise, and how even the ranks are in both accounts.
class ShadowDecode {
 public:
  /// None when the configuration names no policy. Errors: a name that nobody knows.
  static base::Result<std::optional<ShadowDecode>> make(const model::ClusterConfig& config);
  static void describe_metrics(obs::Registry& registry);

  void on_record(const cluster::Record& record) { replay_.record(record); }
  void on_token(model::RequestId id, base::Nanos now) { replay_.token(id, now); }
  /// Brings the metrics up to now.
  void sample(base::Metrics& metrics);

  const std::string& policy() const { return policy_; }
  shadow::DecodeReplayReport report() const { return replay_.report(); }

 private:
  ShadowDecode(std::string policy, shadow::DecodeReplay replay)
      : policy_(std::move(policy)), replay_(std::move(replay)) {}

  std::string policy_;
  shadow::DecodeReplay replay_;
  shadow::DecodeReplayReport told_;  // what the counters have
};

}  // namespace trimtab::agents
