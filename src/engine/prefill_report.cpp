#include "engine/prefill_rank.h"

/// What a prefill rank says of its steps.
namespace trimtab::engine {

void PrefillRank::report_step(const Forward& forward) {
  wire::PrefillStep report;
  report.step = ++steps_;
  report.vote_ns = vote_.vote.value;
  report.budget_ns = plan_.budget.value;
  report.predicted_ns = plan_.predicted.value;
  report.actual_ns = actual_.value;
  for (std::size_t i = 0; i < plan_.chunks.size(); ++i) {
    const policy::PlannedChunk& chunk = plan_.chunks[i];
    if (forward.lost(i)) continue;
    report.chunks.push_back({chunk.id, static_cast<std::uint32_t>(chunk.tokens.value),
                             static_cast<std::uint32_t>(chunk.computed.value), chunk.predicted.value});
  }
  if (report.chunks.empty()) return;  // all of the step was thrown away
  report.waiting = static_cast<std::uint32_t>(scheduler_.waiting());
  report.waiting_ns = scheduler_.waiting_quota().value;
  for (const auto& [id, request] : requests_) {
    if (request.ending || request.stage >= Stage::kComputing) continue;
    ++report.waiting;
    const base::TokenCount hit{request.start.hit_tokens};
    const base::TokenCount all{static_cast<std::int64_t>(request.start.tokens.size())};
    report.waiting_ns += scheduler_.cost().request(hit, all).value;
  }
  report.blocks_free = tables_.allocator().free();
  outbox_.send(report);
}

}  // namespace trimtab::engine
