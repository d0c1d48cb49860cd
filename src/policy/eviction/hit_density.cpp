#include "policy/eviction/hit_density.h"

#include <algorithm>
#include <memory>

#include "policy/eviction/kinds.h"

namespace trimtab::eviction {
namespace {

constexpr std::int64_t kGhostsPerBlock = 8;
constexpr Nanos kAgeEvery{4'000'000'000};

/// The counts must outlast a few generations of the store's content, however large its blocks' prompts are.
Hazards::Settings hazard_settings(const Settings& settings) {
  Hazards::Settings hazards;
  hazards.coarse_of = coarse_of_kinds();
  hazards.coarse_kinds = kCoarseKinds;
  hazards.every =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(settings.capacity_blocks / 2, 2'048, 1'000'000));
  return hazards;
}

}  // namespace

HitDensity::HitDensity(const Settings& settings)
    : cost_(settings.cost),
      block_tokens_(settings.block_tokens),
      hazards_(hazard_settings(settings)),
      cells_(kFineKinds * kWorths * kAges),
      ghosts_(static_cast<std::size_t>(settings.capacity_blocks * kGhostsPerBlock)) {
  double factor = 0.25;  // half octaves from a quarter of the first block's worth to 45 times it
  for (double& each : factors_) {
    each = factor;
    factor *= 1.4142135623730951;
  }
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

Cells::Cell HitDensity::cell_of(const State& state) const {
  return (state.kind.fine * kWorths + state.worth) * kAges + age_bucket(now_ - state.last);
}

double HitDensity::worth_of(Cells::Cell cell) const {
  const std::uint32_t age = cell % kAges, worth = cell / kAges % kWorths, fine = cell / kAges / kWorths;
  return hazards_.index(static_cast<std::uint16_t>(fine), age) * factors_[worth];
}

void HitDensity::place(Slot slot, bool at_end) {
  const Cells::Cell cell = cell_of(states_[slot]);
  cells_.push(slot, cell, worth_of(cell), at_end);
}

void HitDensity::touch(Slot slot, Nanos gap, const Access& access) {
  now_ = std::max(now_, access.now);
  State& state = states_[slot];
  state.kind = kind_of({state.position, state.uses, gap, state.turn}, access);
  state.last = now_;
  state.branch = false;
  if (hazards_.use(state.key, state.kind, now_))
    cells_.reorder([this](Cells::Cell cell) { return worth_of(cell); });
  if (cells_.holds(slot)) cells_.remove(slot);
  if (droppable(slot)) place(slot, false);
}

void HitDensity::on_stored(Slot slot, const Block& block, const Access& access) {
  if (slot >= states_.size()) states_.resize(std::size_t{slot} + 1);
  State& state = states_[slot];
  state = State{};
  state.key = block.key;
  state.position = block.position;
  state.worth = worth_of(block);
  Nanos gap{-1};
  if (const auto ghost = ghosts_.take(block.key)) {
    state.uses = static_cast<std::uint8_t>(std::min(ghost->uses + 1, 255));
    gap = access.now - ghost->last;
  }
  if (block.parent != kNoSlot) {
    State& parent = states_[block.parent];
    parent.children = static_cast<std::uint8_t>(std::min(parent.children + 1, 255));
    state.turn = parent.uses == 0                ? parent.turn
                 : parent.children > kSharedFrom ? std::uint8_t{0}
                                                 : parent.uses;
    now_ = std::max(now_, access.now);
    leave_behind(block.parent, slot);
  }
  touch(slot, gap, access);
}

void HitDensity::on_used(Slot slot, const Access& access) {
  State& state = states_[slot];
  state.uses = static_cast<std::uint8_t>(std::min(state.uses + 1, 255));
  touch(slot, access.now - state.last, access);
}

/// The parent got a new block behind it: what hung there before is not what followed. Each block is marked
/// once a use, so marking costs no more than using. A prefix that strangers share leaves nobody behind.
void HitDensity::leave_behind(Slot parent, Slot taken) {
  if (states_[parent].children > kSharedFrom) return;
  const auto open_children = [this](Slot of) {
    for (Slot child = entry(of).child; child != kNoSlot; child = entry(child).sibling_older)
      if (!states_[child].branch && states_[child].last < now_) open_.push_back(child);
  };
  open_.clear();
  open_children(parent);
  while (!open_.empty()) {
    const Slot slot = open_.back();
    open_.pop_back();
    if (slot == taken) continue;
    open_children(slot);
    State& state = states_[slot];
    state.branch = true;
    state.kind = kind_of_branch(state.uses);
    state.last = now_;
    hazards_.branch(state.key, state.kind, now_);
    if (!cells_.holds(slot)) continue;
    cells_.remove(slot);
    place(slot, false);
  }
}

void HitDensity::on_gone(Slot slot, bool evicted) {
  if (cells_.holds(slot)) cells_.remove(slot);
  if (evicted) ghosts_.remember(states_[slot].key, {states_[slot].last, states_[slot].uses});
}

void HitDensity::on_changed(Slot slot) {
  const bool there = cells_.holds(slot), should = droppable(slot);
  if (there && !should) cells_.remove(slot);
  if (!there && should) place(slot, true);
}

/// Blocks move on to other cells as they age. A block may be late by the time between two looks.
void HitDensity::age() {
  if (aged_.value >= 0 && now_ - aged_ < kAgeEvery) return;
  aged_ = now_;
  cells_.filled(filled_);
  for (const Cells::Cell cell : filled_) {
    for (Slot slot = cells_.oldest(cell); slot != kNoSlot; slot = cells_.oldest(cell)) {
      const Cells::Cell there = cell_of(states_[slot]);
      if (there == cell) break;
      cells_.remove(slot);
      cells_.push(slot, there, worth_of(there), false);
    }
  }
}

Slot HitDensity::candidate(Nanos now) {
  now_ = std::max(now_, now);
  age();
  return cells_.least();
}

std::size_t HitDensity::order_bytes() const {
  return hazards_.memory_bytes() + cells_.memory_bytes() + ghosts_.memory_bytes() +
         states_.capacity() * sizeof(State);
}

std::unique_ptr<Policy> make_hit_density(const Settings& settings) {
  return std::make_unique<HitDensity>(settings);
}

}  // namespace trimtab::eviction
