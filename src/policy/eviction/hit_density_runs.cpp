// The runs of HitDensity: which blocks they hold, their forecasts, ranks and ages.
#include "base/hash.h"
#include "policy/eviction/hit_density.h"

namespace trimtab::eviction {

std::uint64_t HitDensity::later_key(std::uint64_t key) { return base::mix(0xa25e, key); }

void HitDensity::enqueue(RunId id) {
  Run& run = runs_[id];
  run.newer = kNoRun;
  run.older = newest_[run.age];
  (newest_[run.age] == kNoRun ? oldest_[run.age] : runs_[newest_[run.age]].newer) = id;
  newest_[run.age] = id;
}

void HitDensity::dequeue(RunId id) {
  const Run& run = runs_[id];
  (run.newer == kNoRun ? newest_[run.age] : runs_[run.newer].older) = run.older;
  (run.older == kNoRun ? oldest_[run.age] : runs_[run.older].newer) = run.newer;
}

void HitDensity::rank(RunId id) {
  Run& run = runs_[id];
  if (run.ranked || !run.judged || !droppable(run.end)) return;
  run.ranked = true;
  run.rank = run.index[run.age] * factors_[run.worth];
  by_rank_.emplace(run.rank, id);
}

void HitDensity::unrank(RunId id) {
  Run& run = runs_[id];
  if (!run.ranked) return;
  run.ranked = false;
  by_rank_.erase({run.rank, id});
}

/// Runs move on to other buckets as they age. From the oldest on, so that nobody moves twice.
void HitDensity::age() {
  for (std::uint32_t age = kAges - 1; age-- > 0;) {
    while (oldest_[age] != kNoRun && now_ - runs_[oldest_[age]].since >= age_begin(age + 1)) {
      const RunId id = oldest_[age];
      dequeue(id);
      unrank(id);
      runs_[id].age = static_cast<std::uint8_t>(age + 1);
      enqueue(id);
      rank(id);
    }
  }
}

HitDensity::RunId HitDensity::new_run() {
  if (free_.empty()) {
    runs_.emplace_back();
    return static_cast<RunId>(runs_.size() - 1);
  }
  const RunId id = free_.back();
  free_.pop_back();
  runs_[id] = Run{};
  return id;
}

void HitDensity::append(Slot slot, RunId id) {
  unrank(id);
  Run& run = runs_[id];
  State& state = states_[slot];
  state.run = id;
  state.before = run.end;
  state.behind = kNoSlot;
  if (run.end != kNoSlot) states_[run.end].behind = slot;
  run.end = slot;
  ++run.blocks;
}

void HitDensity::take_out(Slot slot) {
  State& state = states_[slot];
  const RunId id = state.run;
  Run& run = runs_[id];
  state.run = kNoRun;
  if (state.before != kNoSlot) states_[state.before].behind = state.behind;
  if (state.behind != kNoSlot) {
    states_[state.behind].before = state.before;
  } else {
    unrank(id);
    run.end = state.before;
  }
  if (--run.blocks > 0) {
    rank(id);
    return;
  }
  if (run.judged) dequeue(id);
  std::erase(opened_, id);
  run.request = 0;
  free_.push_back(id);
}

/// The forecast of a run from its traits; its age counts from `since`.
void HitDensity::judge(RunId id, Nanos since) {
  Run& run = runs_[id];
  if (run.judged) dequeue(id);
  unrank(id);
  run.judged = true;
  run.since = since;
  run.age = 0;
  if (run.cut_off) {
    run.index = {};  // it goes first, and its begin tells what there is to learn
  } else {
    const Features features = features_of(run.traits);
    run.index = odds_.index(features);
    const bool first = run.traits.answer == 0 && !run.traits.branch;
    if (learned_) odds_.begin(first ? run.key : later_key(run.key), features, since);
  }
  enqueue(id);
  rank(id);
}

}  // namespace trimtab::eviction
