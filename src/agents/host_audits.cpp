#include <utility>

#include "agents/host.h"
#include "kv/hit_rule.h"

/// What the host does for DriftAudits: approximate hits in, runs to ranks and back.
namespace trimtab::agents {

void Host::audit_hit(const RequestState& request, const Report& report) {
  if (!request.spans.empty()) return audits_->drop(DriftAudits::Drop::kImages);  // their rows are gone
  DriftAudit audit;
  audit.of = request.id;
  audit.tokens = request.tokens;
  audit.keys = request.keys;
  audit.blocks = report.fetched_blocks;
  kv::HitQuery query;
  query.prompt_tokens = static_cast<std::int64_t>(request.tokens.size());
  query.matched_blocks = report.fetched_blocks;
  query.mode = kv::WindowMode::kExact;
  audit.hit = kv::decide_hit(query, options_.profile.kv).tokens;
  audit.logits = report.logits;
  audits_->add(std::move(audit), now_);
}

void Host::run_audits(const cluster::ClusterStatus& status) {
  if (!audits_) return;
  const base::Nanos now = clock_.now();
  if (const auto overdue = audits_->yield(std::nullopt, now)) abort_audit(*overdue);
  const model::RequestId id{next_request_ + 1};
  if (const auto start = audits_->next(status, now, id)) {
    next_request_ = id.value;
    agent(model::Role::kPrefill, start->rank.engine).start_audit(start->id, start->rank.rank, start->audit);
  }
}

void Host::abort_audit(const DriftAudits::Run& run) {
  agent(model::Role::kPrefill, run.rank.engine)
      .abort({run.id, cluster::Place::of(model::Role::kPrefill, run.rank)});
}

bool Host::take_audit(const Report& report) {
  if (!audits_) return false;
  if (const auto* lost = std::get_if<cluster::Lost>(&report.event)) {
    if (lost->place.role == model::Role::kPrefill) audits_->on_lost(lost->place.rank_id());
  } else if (const auto* done = std::get_if<cluster::PrefillDone>(&report.event)) {
    if (!audits_->owns(done->id, report.from)) return false;
    if (auto entry = audits_->on_done(report, now_)) log({std::move(*entry)});
    return true;
  } else if (const auto* failed = std::get_if<cluster::RequestFailed>(&report.event)) {
    if (!audits_->owns(failed->id, failed->from)) return false;
    audits_->on_failed();
    return true;
  } else if (const auto* released = std::get_if<cluster::Released>(&report.event)) {
    if (!audits_->owns(released->id, released->from)) return false;
    audits_->on_released();
    return true;
  }
  return false;
}

}  // namespace trimtab::agents
