#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "agents/agent.h"
#include "base/metrics.h"
#include "cluster/status.h"
#include "io/decision_log.h"
#include "model/cluster_config.h"
#include "obs/registry.h"

namespace trimtab::agents {

/// A prompt whose hit began `approximate`, to be computed again exactly.
struct DriftAudit {
  model::RequestId of;               // the request that was served
  std::vector<std::int32_t> tokens;  // of its prompt
  std::vector<model::BlockKey> keys;
  std::uint32_t blocks = 0;   // whose KV it read: the audit reads the same
  base::TokenCount hit;       // where the exact computation starts
  std::vector<float> logits;  // of the prompt's last token, as it was served
  base::Nanos since;          // when it was
  std::uint32_t tries = 0;    // that a rank failed
};

/// Measures what `approximate` costs in quality while serving (system facts, section 10): some of the
/// requests whose hit began without the window state that it needs have their prompt computed a second time,
/// in `exact` over the same blocks, and the two rows of logits that the first token of the answer is drawn
/// from are compared (kv::logits_drift).
///
/// The second run belongs to no client and may cost none: it starts when nothing is queued and all ranks of
/// an engine have nothing to do (they step together), it yields as soon as that engine is given a request,
/// and what has waited too long, or is one too many, is dropped and counted. What it computes is stored
/// nowhere. At most one runs at a time. Which requests are measured follows from their ids alone.
///
/// The cluster machine knows nothing of all this: to it the engine is idle, and what the rank says of an
/// audit is taken out before it.
class DriftAudits {
 public:
  static constexpr std::size_t kHeldMax = 8;  // waiting or running; a prompt and a row of logits each
  static constexpr base::Nanos kAgeMax{120'000'000'000};
  static constexpr std::uint32_t kTriesMax = 3;
  enum class Drop : std::uint8_t { kFull, kOld, kFailed, kImages };

  DriftAudits(std::int64_t per_1000, base::Metrics& metrics);
  static void describe_metrics(obs::Registry& registry);

  /// Whether this request is measured, should its hit begin approximate.
  bool chosen(model::RequestId id) const;
  /// It did. One without a row (its rank said none) is dropped.
  void add(DriftAudit audit, base::Nanos now);
  void drop(Drop why);

  struct Start {
    model::RequestId id;  // of the second run
    model::RankId rank;
    const DriftAudit& audit;  // until the next call
  };
  /// The oldest that waits, when it may run; `id` becomes its name. Drops what is too old first.
  std::optional<Start> next(const cluster::ClusterStatus& status, base::Nanos now, model::RequestId id);
  /// The run that must be aborted now, once: the engine is given a request, or (`engine` absent) it is
  /// overdue.
  struct Run {
    model::RequestId id;
    model::RankId rank;
  };
  std::optional<Run> yield(std::optional<model::EngineId> engine, base::Nanos now);

  bool owns(model::RequestId id, const cluster::Place& from) const {
    return running_ && running_->id == id &&
           from == cluster::Place::of(model::Role::kPrefill, running_->rank);
  }
  /// What a rank says of the run that this owns. The first: the figure of the request, if it can be told.
  std::optional<io::DriftEntry> on_done(const Report& report, base::Nanos now);
  void on_failed();
  void on_released();
  void on_lost(model::RankId rank);

  struct Totals {
    std::uint64_t done = 0, same_token = 0;
    std::array<std::uint64_t, 4> dropped = {};                   // by Drop
    double relative_sum = 0, relative_max = 0, largest_max = 0;  // kv::LogitsDrift
    std::uint64_t computed_tokens = 0;                           // by the second runs that were compared
  };
  const Totals& totals() const { return totals_; }
  std::size_t waiting() const { return waiting_.size(); }
  bool running() const { return running_.has_value(); }
  std::int64_t per_1000() const { return per_1000_; }

 private:
  struct Running {
    model::RequestId id;
    model::RankId rank;
    DriftAudit audit;
    bool aborted = false;   // Released is still to come, whatever else does
    bool answered = false;  // its figure is known
  };
  /// Ends the run; one without a figure waits again, first in line, unless ranks have failed it too often.
  void leave(bool failed);

  std::int64_t per_1000_;
  base::Metrics& metrics_;
  std::deque<DriftAudit> waiting_;
  std::optional<Running> running_;
  Totals totals_;
};

}  // namespace trimtab::agents
