// Blocks that are stored after other requests came: a prompt is computed for seconds, and saved as it is.
#include "policy/eviction/hit_density.h"

namespace trimtab::eviction {
namespace {

/// A request that so many others have followed and ended is not known any more.
constexpr std::size_t kEarlierMost = 1'024;

}  // namespace

HitDensity::Earlier& HitDensity::earlier(Nanos asked) {
  const auto found = earlier_.find(asked);
  if (found != earlier_.end()) return found->second;
  if (earlier_.size() >= kEarlierMost) earlier_.erase(earlier_.begin());
  return earlier_[asked];
}

/// The missing block has come: this one, and what hangs behind it, can be hit.
void HitDensity::on_joined(Slot slot) {
  left_.assign(1, slot);
  while (!left_.empty()) {
    const Slot of = left_.back();
    left_.pop_back();
    states_[of].cut_off = false;
    Run& run = runs_[states_[of].run];
    if (run.cut_off) {
      run.cut_off = false;
      if (run.judged) judge(states_[of].run, run.since);
    }
    for (Slot child = entry(of).child; child != kNoSlot; child = entry(child).sibling_older)
      left_.push_back(child);
  }
}

/// What is known of its request, and when it came, are the request's own, not those of the last one; so the
/// forecast is the one that the block would have had, had it been stored at once.
void HitDensity::touch_late(Slot slot, Nanos gap, const Access& access) {
  end_request();
  State& state = states_[slot];
  const Slot parent = entry(slot).parent;
  ends_episode(state, access.now);
  Earlier& of = earlier(access.now);
  if (of.request == 0) {
    of.request = ++request_;
    of.traits = traits_of(access);
    of.since = access.now;
    compare_shadows();  // once a request
  }
  if (gap.value >= 0) {
    speak_for(of.traits, state, gap);
  } else if (parent != kNoSlot) {
    state.pace = states_[parent].pace;
  }
  state.answer = of.traits.answer;
  state.last = access.now;
  if (state.run != kNoRun) take_out(slot);
  const std::uint8_t uses = uses_bucket(state.uses), gap_now = gap_bucket(gap);
  const bool known = of.last_run != kNoRun && runs_[of.last_run].request == of.request;
  if (known) {
    const Run& last = runs_[of.last_run];
    if (parent != kNoSlot && last.end == parent && last.traits.uses == uses && last.traits.gap == gap_now &&
        last.traits.end == state.end && last.worth == state.worth && !last.traits.branch &&
        last.cut_off == state.cut_off) {
      append(slot, of.last_run);
      rank(of.last_run);
      return;
    }
  }
  const RunId id = new_run();
  Run& run = runs_[id];
  run.traits = of.traits;
  run.traits.uses = uses;
  run.traits.gap = gap_now;
  run.traits.end = state.end;
  run.traits.children = children_bucket(state.children);
  run.asked = access.now;
  run.request = of.request;
  run.worth = state.worth;
  run.key = state.key;
  run.cut_off = state.cut_off;
  run.run_before = known ? of.last_run : kNoRun;
  of.last_run = id;
  append(slot, id);
  state.leads = true;
  judge(id, of.since);
}

}  // namespace trimtab::eviction
