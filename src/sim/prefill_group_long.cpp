// What a prefill group computes together, and what its chunks really take.
#include <algorithm>
#include <utility>

#include "sim/cost_error.h"
#include "sim/prefill_group.h"

namespace trimtab::sim {

PrefillGroup::Load PrefillGroup::load_of(const policy::StepPlan& plan) const {
  Load load;
  for (const policy::PlannedChunk& chunk : plan.chunks) {
    const TokenCount prompt{host_.request(Host::slot_of(chunk.id)).tokens};
    const Nanos attention = cost_.attention(chunk.tokens, chunk.computed, prompt);
    const Nanos rest = cost_.whole(chunk.tokens, chunk.computed, prompt) - attention;
    const double error = cost_factor(scenario_, chunk.id);
    load.attention += scaled(attention, error);
    load.rest += scaled(rest, error);
  }
  return load;
}

/// Plans the step's context-parallel chunks: what they take on every rank.
PrefillGroup::Load PrefillGroup::share_of_long(Nanos part) {
  if (part <= Nanos{0}) return {};
  long_plan_ = long_->plan(part);
  const Load whole = load_of(long_plan_);
  work_ns_ += static_cast<double>((whole.attention + whole.rest).value);
  const double each =
      (1.0 + scenario_.prefill.context_parallel_communication) / static_cast<double>(ranks_.size());
  return {scaled(whole.attention, each), scaled(whole.rest, each)};
}

void PrefillGroup::finish_long(std::vector<RequestId>& done) {
  const policy::StepPlan plan = std::exchange(long_plan_, {});
  if (plan.chunks.empty()) return;
  done = long_->done(plan);
  for (const policy::PlannedChunk& chunk : plan.chunks) {
    const auto rank = long_ranks_.find(chunk.id);
    if (rank == long_ranks_.end()) continue;  // aborted while it was computed
    chunk_done(chunk, std::ranges::find(done, chunk.id) != done.end());
    cluster::PrefillStepped event;
    event.from = {engine_, rank->second};
    event.step = step_;
    event.budget = budget_;
    event.predicted = plan.predicted;
    event.actual = actual_;
    event.waiting = static_cast<std::uint32_t>(long_->waiting());
    event.chunks.push_back({chunk.id, chunk.tokens, chunk.computed, chunk.predicted});
    host_.tell(std::move(event));
  }
  for (const RequestId id : done) long_ranks_.erase(id);
}

}  // namespace trimtab::sim
