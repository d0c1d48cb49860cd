#include "policy/experts/plan/swaps.h"

#include <algorithm>

#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void SwapSearch::reset(const Shape& shape, Placement& placement) {
  shape_ = shape;
  placement_ = &placement;
  clock_ = 1;
  changed_.assign(at(shape.ranks), 1);
  seen_.assign(at(shape.slots), 0);
  own_.resize(at(shape.slots));
  row_.resize(at(placement.experts_padded()));
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) refresh(rank);
}

void SwapSearch::refresh(std::int32_t rank) {
  const std::int32_t width = shape_.slots_per_rank();
  for (std::int32_t slot = rank * width; slot < (rank + 1) * width; ++slot) {
    const std::int32_t expert = placement_->map()[at(slot)];
    const float share = placement_->share(expert);
    own_[at(slot)] = share * (share * placement_->gram(expert, expert) - placement_->product(rank, expert)) -
                     placement_->price(rank, expert);
  }
  changed_[at(rank)] = clock_;
}

Swap SwapSearch::best(std::int32_t slot, std::int64_t since) {
  const std::int32_t rank = shape_.rank_of_slot(slot), width = shape_.slots_per_rank();
  const std::int32_t expert = placement_->map()[at(slot)];
  const float share = placement_->share(expert);
  kernels().swap_row(row_.data(), placement_->products(rank), placement_->gram_row(expert), 2 * share,
                     placement_->shares(), placement_->penalties(rank), placement_->experts_padded());
  const std::int32_t* map = placement_->map().data();
  const float* row = row_.data();
  const float own = own_[at(slot)];
  Swap found;
  for (std::int32_t other = 0; other < shape_.ranks; ++other) {
    if (changed_[at(other)] <= since) continue;
    const float penalty = placement_->penalties(other)[expert];
    if (penalty == Placement::kForbidden) continue;
    const float base = own + share * placement_->product(other, expert) + penalty;
    float least = Placement::kForbidden;
    std::int32_t partner = -1;
    for (std::int32_t candidate = other * width; candidate < (other + 1) * width; ++candidate) {
      const float delta = row[map[candidate]] + own_[at(candidate)];
      if (delta < least) {
        least = delta;
        partner = candidate;
      }
    }
    if (partner >= 0 && base + least < found.delta) found = {partner, base + least};
  }
  return found;
}

void SwapSearch::apply(std::int32_t slot_a, std::int32_t slot_b) {
  placement_->swap(slot_a, slot_b);
  ++clock_;
  refresh(shape_.rank_of_slot(slot_a));
  refresh(shape_.rank_of_slot(slot_b));
}

std::int64_t SwapSearch::descend(double tolerance, std::int64_t swaps_max) {
  const auto threshold = static_cast<float>(-tolerance * placement_->square_sum());
  std::int64_t swaps = 0;
  std::int32_t quiet = 0;
  for (std::int32_t slot = 0; quiet < shape_.slots && swaps < swaps_max; slot = (slot + 1) % shape_.slots) {
    const std::int64_t seen = seen_[at(slot)];
    const std::int64_t since = changed_[at(shape_.rank_of_slot(slot))] > seen ? 0 : seen;
    const std::int64_t now = clock_;
    const Swap swap = best(slot, since);
    if (swap.partner >= 0 && swap.delta < threshold) {
      apply(slot, swap.partner);
      ++swaps;
      quiet = 0;
    } else {
      seen_[at(slot)] = now;
      ++quiet;
    }
  }
  return swaps;
}

}  // namespace trimtab::experts
