#include "agents/drift_audits.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "kv/logits_drift.h"

namespace trimtab::agents {

using base::Nanos;

namespace {

const char* name_of(DriftAudits::Drop why) {
  switch (why) {
    case DriftAudits::Drop::kFull:
      return "full";
    case DriftAudits::Drop::kOld:
      return "old";
    case DriftAudits::Drop::kImages:
      return "images";
    case DriftAudits::Drop::kFailed:
      break;
  }
  return "failed";
}

/// All its ranks have nothing to do and room for a prompt of so many blocks.
bool is_idle(const cluster::EngineStatus& engine, std::int64_t blocks) {
  if (engine.role != model::Role::kPrefill || !engine.serving || engine.draining) return false;
  return std::all_of(engine.ranks.begin(), engine.ranks.end(), [blocks](const cluster::RankStatus& rank) {
    return rank.heard && rank.requests == 0 && rank.blocks_total >= blocks;
  });
}

}  // namespace

DriftAudits::DriftAudits(std::int64_t per_1000, base::Metrics& metrics)
    : per_1000_(per_1000), metrics_(metrics) {}

void DriftAudits::describe_metrics(obs::Registry& registry) {
  registry.describe("trimtab_window_drift_ratio",
                    "Root mean square error of the first token's logits over their spread, of approximate "
                    "hits that were computed a second time, exactly.",
                    {0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1, 2});
  registry.describe("trimtab_window_drift_ratio_max", "The largest of those since the start.");
  registry.describe("trimtab_window_drift_audits_total",
                    "Approximate hits that were compared, by whether the most likely token was the same.");
  registry.describe("trimtab_window_drift_dropped_total",
                    "Approximate hits that were to be compared and were not: full (too many waited), old "
                    "(prefill was never idle), failed (blocks were gone, a rank refused), images.");
  registry.describe("trimtab_window_drift_tokens_total", "Tokens computed for the comparisons alone.");
}

bool DriftAudits::chosen(model::RequestId id) const {
  return static_cast<std::int64_t>(base::mix(0x64726966, id.value) % 1000) < per_1000_;
}

void DriftAudits::drop(Drop why) {
  ++totals_.dropped[static_cast<std::size_t>(why)];
  metrics_.add("trimtab_window_drift_dropped_total", 1, {{"why", name_of(why)}});
}

void DriftAudits::add(DriftAudit audit, Nanos now) {
  if (audit.logits.empty()) return drop(Drop::kFailed);
  if (waiting_.size() + (running_ ? 1 : 0) >= kHeldMax) return drop(Drop::kFull);
  audit.since = now;
  waiting_.push_back(std::move(audit));
}

std::optional<DriftAudits::Start> DriftAudits::next(const cluster::ClusterStatus& status, Nanos now,
                                                    model::RequestId id) {
  while (!waiting_.empty() && now - waiting_.front().since > kAgeMax) {
    waiting_.pop_front();
    drop(Drop::kOld);
  }
  if (running_ || waiting_.empty() || status.queued > 0 || status.matching > 0) return std::nullopt;
  const auto tokens = static_cast<std::int64_t>(waiting_.front().tokens.size());
  const std::int64_t blocks = (tokens + model::kBlockTokens - 1) / model::kBlockTokens;
  const auto engine =
      std::find_if(status.engines.begin(), status.engines.end(),
                   [blocks](const cluster::EngineStatus& one) { return is_idle(one, blocks); });
  if (engine == status.engines.end()) return std::nullopt;
  running_ = Running{id, {engine->engine, 0}, std::move(waiting_.front()), false, false};
  waiting_.pop_front();
  return Start{id, running_->rank, running_->audit};
}

std::optional<DriftAudits::Run> DriftAudits::yield(std::optional<model::EngineId> engine, Nanos now) {
  if (!running_ || running_->aborted) return std::nullopt;
  const bool due = engine ? *engine == running_->rank.engine : now - running_->audit.since > kAgeMax;
  if (!due) return std::nullopt;
  running_->aborted = true;
  return Run{running_->id, running_->rank};
}

std::optional<io::DriftEntry> DriftAudits::on_done(const Report& report, Nanos now) {
  TRIMTAB_CHECK(running_.has_value());
  Running& run = *running_;
  if (run.answered) return std::nullopt;
  const auto& done = std::get<cluster::PrefillDone>(report.event);
  // Over other blocks the figure would be of another hit: those that are gone are computed, and then exact.
  std::optional<kv::LogitsDrift> drift;
  if (report.fetched_blocks == run.audit.blocks) drift = kv::logits_drift(report.logits, run.audit.logits);
  run.answered = true;
  std::optional<io::DriftEntry> entry;
  if (drift) {
    ++totals_.done;
    totals_.same_token += drift->same_token ? 1 : 0;
    totals_.relative_sum += drift->relative;
    totals_.relative_max = std::max(totals_.relative_max, drift->relative);
    totals_.largest_max = std::max(totals_.largest_max, drift->largest);
    totals_.computed_tokens += static_cast<std::uint64_t>(done.computed.value);
    metrics_.observe("trimtab_window_drift_ratio", drift->relative);
    metrics_.set("trimtab_window_drift_ratio_max", totals_.relative_max);
    metrics_.add("trimtab_window_drift_audits_total", 1, {{"same_token", drift->same_token ? "yes" : "no"}});
    metrics_.add("trimtab_window_drift_tokens_total", static_cast<double>(done.computed.value));
    entry = io::DriftEntry{run.audit.of,
                           now,
                           drift->relative,
                           drift->largest,
                           static_cast<std::uint8_t>(drift->same_token ? 1 : 0),
                           static_cast<std::uint32_t>(done.computed.value)};
  } else {
    drop(Drop::kFailed);
  }
  if (!run.aborted) leave(false);
  return entry;
}

void DriftAudits::on_failed() {
  TRIMTAB_CHECK(running_.has_value());
  if (!running_->aborted) leave(true);  // else the answer to the abort is on its way
}

void DriftAudits::on_released() { leave(false); }

void DriftAudits::on_lost(model::RankId rank) {
  if (running_ && running_->rank == rank) leave(true);
}

void DriftAudits::leave(bool failed) {
  TRIMTAB_CHECK(running_.has_value());
  Running run = std::move(*running_);
  running_.reset();
  if (run.answered) return;
  run.audit.tries += failed ? 1 : 0;
  if (run.audit.tries >= kTriesMax) return drop(Drop::kFailed);
  waiting_.push_front(std::move(run.audit));
}

}  // namespace trimtab::agents
