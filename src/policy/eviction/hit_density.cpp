#include "policy/eviction/hit_density.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/hash.h"

namespace trimtab::eviction {
namespace {

constexpr std::int64_t kGhostsPerBlock = 8;
/// From this many different continuations on a block belongs to a prefix that strangers share.
constexpr std::uint32_t kSharedFrom = 8;
/// A shadow is told every second conversation, or all of them where that were too few blocks. Of fewer, the
/// load is so much more uneven than the whole that another order may be better than for the whole.
constexpr std::uint64_t kSampleMaskMost = 1;
constexpr std::int64_t kShadowBlocksLeast = 1'024;
/// What a request that is told leaves of a shadow's older hits.
constexpr double kFade = 0.999;

Odds::Settings odds_settings() {
  Odds::Settings odds;
  odds.rows = feature_rows();
  return odds;
}

std::uint8_t one_more(std::uint8_t count) { return static_cast<std::uint8_t>(std::min(count + 1, 255)); }

}  // namespace

HitDensity::HitDensity(const Settings& settings, std::unique_ptr<Odds> learned, Odds* teacher)
    : cost_(settings.cost),
      block_tokens_(settings.block_tokens),
      lead_(settings.lead),
      lead_to_stay_(settings.lead_to_stay),
      learned_(std::move(learned)),
      odds_(learned_ ? *learned_ : *teacher),
      ghosts_(static_cast<std::size_t>(settings.capacity_blocks * kGhostsPerBlock)) {
  double factor = 0.25;  // half octaves from a quarter of the first block's worth to 45 times it
  for (double& each : factors_) {
    each = factor;
    factor *= 1.4142135623730951;
  }
  newest_.fill(kNoRun);
  oldest_.fill(kNoRun);
}

HitDensity::HitDensity(const Settings& settings)
    : HitDensity(settings, std::make_unique<Odds>(odds_settings()), nullptr) {
  Settings part = settings;
  while (sample_mask_ < kSampleMaskMost && part.capacity_blocks >= 2 * kShadowBlocksLeast) {
    sample_mask_ = sample_mask_ * 2 + 1;
    part.capacity_blocks /= 2;
  }
  const auto room = static_cast<std::uint64_t>(part.capacity_blocks);
  by_recency_ = std::make_unique<Shadow>(make_lru(part), room);
  by_density_ = std::make_unique<Shadow>(std::make_unique<HitDensity>(part, odds_), room);
  // Where blocks differ in cost, their order matters before anything is known of their use.
  prefer_density_ = cost_ != nullptr || lead_ <= 0;
}

HitDensity::HitDensity(const Settings& settings, Odds& teacher) : HitDensity(settings, nullptr, &teacher) {
  prefer_density_ = true;
}

std::uint8_t HitDensity::worth_of(const Block& block) {
  using base::TokenCount;
  const auto cost_at = [&](std::int64_t position) {
    if (cost_ == nullptr) return 1.0;
    const TokenCount before{position * block_tokens_}, tokens{block_tokens_};
    return static_cast<double>(
        std::max<std::int64_t>(cost_->whole(tokens, before, before + tokens).value, 1));
  };
  const double bytes = static_cast<double>(std::max<std::int64_t>(block.bytes.value, 1));
  if (worth_unit_ <= 0) worth_unit_ = cost_at(0) / bytes;
  const double worth = cost_at(block.position) / bytes / worth_unit_;
  const auto above = std::ranges::upper_bound(factors_, worth * 1.0000001);
  return static_cast<std::uint8_t>(std::max<std::ptrdiff_t>(above - factors_.begin() - 1, 0));
}

void HitDensity::arrive(const Access& access) {
  now_ = std::max(now_, access.now);
  if (telling_ && asked_ != now_) end_request();
}

Traits HitDensity::traits_of(const Access& access) {
  const std::int64_t blocks = access.prompt_blocks, known = access.known_blocks;
  Traits traits;
  traits.added = added_bucket(std::max<std::int64_t>(blocks - known, 0));
  traits.prompt = prompt_bucket(blocks);
  return traits;
}

void HitDensity::begin_request(const Access& access) {
  end_request();
  telling_ = true;
  ++request_;
  asked_ = now_;
  last_ = kNoSlot;
  traits_ = traits_of(access);
}

void HitDensity::end_request() {
  if (!telling_) return;
  telling_ = false;
  for (const RunId id : opened_) {
    Run& run = runs_[id];
    const Traits own = run.traits;
    run.traits = traits_;
    run.traits.uses = own.uses;
    run.traits.gap = own.gap;
    run.traits.end = own.end;
    run.traits.children = children_bucket(states_[run.end].children);
    judge(id, run.asked);
  }
  Earlier& over = earlier(asked_);
  over = {traits_, request_, opened_.empty() ? kNoRun : opened_.back(), asked_,
          last_ == kNoSlot ? 0 : states_[last_].line};
  opened_.clear();
  compare_shadows();
}

bool HitDensity::sampled(std::uint64_t line) const {
  return by_density_ && (base::mix(0x5ad0, line) & sample_mask_) == 0;
}

/// `parent_key`: of the block before it; they may hold that one also when this store does not.
void HitDensity::tell_shadows(Slot slot, std::uint64_t parent_key, const Access& access, bool late) {
  const State& state = states_[slot];
  if (!sampled(state.line)) return;
  // A prefix that strangers share may be of a conversation that they are not told.
  if (const Slot before = entry(slot).parent; before != kNoSlot)
    parent_key = sampled(states_[before].line) ? states_[before].key : 0;
  Block block;
  block.key = state.key;
  block.parent_key = parent_key;
  block.position = state.position;
  for (Shadow* shadow : {by_recency_.get(), by_density_.get()}) {
    shadow->told(block, access, factors_[state.worth]);
    // Of a block that comes by itself the request's end is not known; the store, too, makes room for each.
    if (late) shadow->make_room(now_);
  }
  shadowed_ = true;
}

/// The order that has hit more of late leads; in doubt LRU.
void HitDensity::compare_shadows() {
  if (!shadowed_) return;
  shadowed_ = false;
  for (Shadow* shadow : {by_recency_.get(), by_density_.get()}) {
    shadow->make_room(now_);
    shadow->fade(kFade);
  }
  const double ours = by_density_->hits(), others = by_recency_->hits();
  prefer_density_ = lead_ <= 0 || (prefer_density_ ? ours >= others * lead_to_stay_ : ours > others * lead_);
}

/// As LRU does: a request's end is older than its begin.
void HitDensity::place_recent(Slot slot) {
  const Slot parent = entry(slot).parent;
  if (parent != kNoSlot && states_[parent].last == states_[slot].last) {
    recency_.push_behind(parent, slot);
  } else {
    recency_.push(slot);
  }
}

/// A store that saves block by block tells no prompt: what it saves behind a run that is new belongs to it.
bool HitDensity::joins_saved(Slot slot, const Access& access) {
  const Slot parent = entry(slot).parent;
  State& state = states_[slot];
  if (access.prompt_blocks != 0 || parent == kNoSlot || state.uses != 0) return false;
  end_request();
  const RunId id = states_[parent].run;
  const Run& run = runs_[id];
  if (run.end != parent || run.traits.uses != 0 || run.traits.branch || run.worth != state.worth)
    return false;
  state.last = now_;
  append(slot, id);
  rank(id);
  return true;
}

HitDensity::RunId HitDensity::run_for(Slot slot, std::uint8_t gap) {
  State& state = states_[slot];
  const std::uint8_t uses = uses_bucket(state.uses);
  if (!opened_.empty()) {
    const Run& run = runs_[opened_.back()];
    if (last_ != kNoSlot && run.end == last_ && run.traits.uses == uses && run.traits.gap == gap &&
        run.traits.end == state.end && run.worth == state.worth && run.cut_off == state.cut_off)
      return opened_.back();
  }
  const RunId id = new_run();
  Run& run = runs_[id];
  run.traits.uses = uses;
  run.traits.gap = gap;
  run.traits.end = state.end;
  run.asked = asked_;
  run.request = request_;
  run.worth = state.worth;
  run.key = state.key;
  run.cut_off = state.cut_off;
  run.run_before = opened_.empty() ? kNoRun : opened_.back();
  opened_.push_back(id);
  state.leads = true;
  return id;
}

/// `gap` below 0: it was not used before.
void HitDensity::touch(Slot slot, Nanos gap, const Access& access) {
  State& state = states_[slot];
  const Slot parent = entry(slot).parent;
  ends_episode(state, now_);
  if (!telling_ || parent == kNoSlot || parent != last_) {
    if (gap.value < 0 && joins_saved(slot, access)) return;
    begin_request(access);
  }
  if (gap.value >= 0) {
    speak_for(traits_, state, gap);
  } else if (last_ != kNoSlot) {
    state.pace = states_[last_].pace;
  }
  state.answer = 0;
  state.last = now_;
  if (state.run != kNoRun) take_out(slot);
  append(slot, run_for(slot, gap_bucket(gap)));
  last_ = slot;
}

/// It was used again, or stored again, after which nobody waits for its use any more.
void HitDensity::ends_episode(State& state, Nanos now) {
  if (!state.leads || !learned_) return;
  odds_.used(state.key, now);
  odds_.used(later_key(state.key), now);
  state.leads = false;
}

/// The last known block speaks for the request.
void HitDensity::speak_for(Traits& request, State& state, Nanos gap) const {
  const std::uint32_t pace = age_bucket(gap) * 8 + 1;
  state.pace = static_cast<std::uint8_t>(state.pace == 0 ? pace : (state.pace * 3U + pace) / 4);
  request.turn = uses_bucket(state.children > kSharedFrom ? 0 : state.uses);
  request.since = gap_bucket(gap);
  request.pace = static_cast<std::uint8_t>(std::min<std::uint32_t>(state.pace / 12U, kPaces - 1));
  request.answer_before = state.answer;
}

void HitDensity::on_stored(Slot slot, const Block& block, const Access& access) {
  const bool late = access.now < now_;
  arrive(access);
  if (slot >= states_.size()) states_.resize(std::size_t{slot} + 1);
  State& state = states_[slot];
  state = State{};
  state.key = block.key;
  state.line = block.key;
  state.position = block.position;
  state.worth = worth_of(block);
  state.end = access.prompt_blocks > 0 && block.position + 1 == access.prompt_blocks;
  state.leads = true;  // perhaps, when it was here before
  Nanos gap{-1};
  if (const auto ghost = ghosts_.take(block.key)) {
    state.uses = one_more(ghost->uses);
    state.pace = ghost->pace;
    state.answer = ghost->answer;
    gap = std::max(access.now - ghost->last, Nanos{0});
  }
  if (block.parent != kNoSlot) {
    states_[block.parent].children = one_more(states_[block.parent].children);
    if (states_[block.parent].children <= kSharedFrom) state.line = states_[block.parent].line;
    leave_behind(block.parent, slot, access.now);
  }
  if (const auto of = earlier_.find(access.now); of != earlier_.end() && waits(slot))
    state.line = of->second.line;
  state.cut_off = waits(slot) || (block.parent != kNoSlot && runs_[states_[block.parent].run].cut_off);
  late ? touch_late(slot, gap, access) : touch(slot, gap, access);
  place_recent(slot);
  if (const auto of = earlier_.find(access.now); late && of != earlier_.end()) of->second.line = state.line;
  tell_shadows(slot, state.line == block.key ? 0 : block.parent_key, access, late);
}

void HitDensity::on_used(Slot slot, const Access& access) {
  const bool late = access.now < now_;
  arrive(access);
  states_[slot].uses = one_more(states_[slot].uses);
  states_[slot].cut_off = false;
  const Nanos gap = access.now - states_[slot].last;
  // A request that came later has used it already: its word counts.
  if (!late || gap.value > 0) {
    late ? touch_late(slot, gap, access) : touch(slot, gap, access);
    recency_.remove(slot);
    place_recent(slot);
  }
  tell_shadows(slot, 0, access, late);
}

/// The parent got a new block behind it: what hung there before is not what followed. A run is marked once a
/// use, so marking costs no more than using. A prefix that strangers share leaves nobody behind.
void HitDensity::leave_behind(Slot parent, Slot taken, Nanos asked) {
  if (states_[parent].children > kSharedFrom) return;
  left_.clear();
  const auto look_behind = [&](Slot of) {
    for (Slot child = entry(of).child; child != kNoSlot; child = entry(child).sibling_older)
      if (child != taken && states_[child].last < asked) left_.push_back(child);
  };
  look_behind(parent);
  while (!left_.empty()) {
    const RunId id = states_[left_.back()].run;
    left_.pop_back();
    if (!runs_[id].judged || runs_[id].traits.branch) continue;
    runs_[id].traits.branch = true;
    judge(id, now_);
    look_behind(runs_[id].end);
  }
}

void HitDensity::on_answered(Slot slot, Nanos asked, std::uint32_t tokens, Nanos now) {
  if (states_[slot].last != asked) return;
  end_request();
  if (by_density_) {
    // The shadow may hold less of it.
    for (Slot of = slot; of != kNoSlot; of = entry(of).parent)
      if (by_density_->answered(states_[of].key, asked, tokens, now)) break;
  }
  now_ = std::max(now_, now);
  const std::uint8_t answer = answer_bucket(tokens);
  if (const auto found = earlier_.find(asked); found != earlier_.end()) {
    found->second.traits.answer = answer;
    found->second.since = now_;
  }
  RunId id = states_[slot].run;
  const std::uint64_t request = runs_[id].request;
  // A run that has its answer ends the walk, also when a number was given again meanwhile.
  while (request != 0 && id != kNoRun && runs_[id].request == request && runs_[id].traits.answer == 0) {
    Run& run = runs_[id];
    run.traits.answer = answer;
    states_[run.end].answer = answer;
    run.traits.branch ? rank(id) : judge(id, now_);
    id = run.run_before;
  }
}

void HitDensity::on_gone(Slot slot, bool evicted) {
  const State& state = states_[slot];
  if (evicted) ghosts_.remember(state.key, {state.last, state.uses, state.pace, state.answer});
  if (last_ == slot) end_request();
  take_out(slot);
  recency_.remove(slot);
}

void HitDensity::on_changed(Slot slot) {
  const RunId id = states_[slot].run;
  if (id == kNoRun) return;
  const bool can_go = droppable(slot);
  if (runs_[id].end == slot) {
    if (can_go) rank(id);
    if (!can_go) unrank(id);
    return;
  }
  if (!can_go) return;
  // The block behind it was withdrawn: it is the end of a run of its own.
  end_request();
  Run alone = runs_[id];
  take_out(slot);
  alone.key = states_[slot].key;
  alone.request = 0;
  alone.end = alone.newer = alone.older = alone.run_before = kNoRun;
  alone.blocks = 0;
  alone.judged = alone.ranked = false;
  const RunId own = new_run();
  runs_[own] = alone;
  append(slot, own);
  states_[slot].leads = true;
  judge(own, now_);
}

Slot HitDensity::candidate(Nanos now) {
  now_ = std::max(now_, now);
  end_request();
  age();
  if (!prefer_density_) return recency_.oldest();
  return by_rank_.empty() ? kNoSlot : runs_[by_rank_.begin()->second].end;
}

std::size_t HitDensity::order_bytes() const {
  const std::size_t shadows = by_density_ ? by_density_->memory_bytes() + by_recency_->memory_bytes() : 0;
  return shadows + (learned_ ? odds_.memory_bytes() : 0) + recency_.memory_bytes() + ghosts_.memory_bytes() +
         states_.capacity() * sizeof(State) + runs_.capacity() * sizeof(Run) +
         free_.capacity() * sizeof(RunId) + by_rank_.size() * 48 + earlier_.size() * (sizeof(Earlier) + 48);
}

std::unique_ptr<Policy> make_hit_density(const Settings& settings) {
  return std::make_unique<HitDensity>(settings);
}

}  // namespace trimtab::eviction
