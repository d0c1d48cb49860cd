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

std::vector<PrefillGroup::Load> PrefillGroup::plan_fifo(bool others) {
  const Nanos part = long_->part(budget_, others);
  const Load together = share_of_long(part);
  for (Rank& rank : ranks_) rank.plan = rank.scheduler.plan(budget_ - part);
  return std::vector<Load>(ranks_.size(), together);
}

/// Under two budgets: policy/prefill/group_step.h.
std::vector<PrefillGroup::Load> PrefillGroup::compose() {
  std::vector<const policy::RankScheduler*> schedulers;
  for (const Rank& rank : ranks_) schedulers.push_back(&rank.scheduler);
  const double communication = scenario_.prefill.context_parallel_communication;
  policy::GroupStep step = policy::compose_step(
      schedulers, {budget_, scenario_.cluster.prefill.context_parallel_percent, communication});
  std::vector<Load> helped(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].plan = std::move(step.ranks[r]);
  helps_.clear();
  for (policy::HelpChunk& help : step.helps) {
    policy::StepPlan one;
    one.chunks.push_back(help.chunk);
    const Load whole = load_of(one);
    work_ns_ += static_cast<double>((whole.attention + whole.rest).value);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const double part = static_cast<double>(help.rank_tokens[r].value) /
                          static_cast<double>(help.chunk.tokens.value) *
                          (r == help.rank ? 1.0 : 1.0 + communication);
      helped[r] = helped[r] + Load{scaled(whole.attention, part), scaled(whole.rest, part)};
    }
    helps_.push_back(std::move(help));
  }
  return helped;
}

/// What peers computed of a rank's requests is that rank's to report.
void PrefillGroup::merge_helps() {
  for (const policy::HelpChunk& help : std::exchange(helps_, {})) {
    policy::StepPlan& plan = ranks_[help.rank].plan;
    const auto own = std::ranges::find(plan.chunks, help.chunk.id, &policy::PlannedChunk::id);
    if (own == plan.chunks.end()) {
      plan.chunks.push_back(help.chunk);
    } else {
      own->tokens += help.chunk.tokens;
      own->predicted += help.chunk.predicted;
    }
  }
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
