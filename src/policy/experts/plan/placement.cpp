#include "policy/experts/plan/placement.h"

#include <algorithm>

#include "base/check.h"
#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void Placement::reset(const Shape& shape, const LayerLoads& loads, std::span<const std::int32_t> copies) {
  shape_ = shape;
  loads_ = &loads;
  padded_ = loads.experts_padded;
  map_.assign(at(shape.slots), -1);
  copies_.assign(copies.begin(), copies.end());
  shares_.assign(at(padded_), 0.0F);
  for (std::size_t expert = 0; expert < copies_.size(); ++expert)
    shares_[expert] = copies_[expert] > 0 ? 1.0F / static_cast<float>(copies_[expert]) : 0.0F;
  free_.assign(at(shape.ranks), shape.slots_per_rank());
  prices_.clear();
  penalties_.assign(at(shape.ranks) * at(padded_), 0.0F);
  // Products start at minus the mean rank's, so that they stay small and single precision is enough.
  products_.assign(at(shape.ranks) * at(padded_), 0.0F);
  for (std::int32_t expert = 0; expert < shape.experts; ++expert)
    kernels().add_scaled(products_.data(), loads.gram_row(expert), -1.0F / static_cast<float>(shape.ranks),
                         padded_);
  for (std::int32_t rank = 1; rank < shape.ranks; ++rank)
    std::copy_n(products_.begin(), padded_, products_.begin() + static_cast<std::ptrdiff_t>(row(rank)));
}

void Placement::set_prices(std::span<const std::int32_t> before, float price) {
  prices_.assign(at(shape_.ranks) * at(padded_), price);
  for (std::int32_t slot = 0; slot < shape_.slots; ++slot)
    prices_[row(shape_.rank_of_slot(slot)) + at(before[at(slot)])] = 0.0F;
  penalties_ = prices_;
}

void Placement::set_map(std::span<const std::int32_t> map) {
  for (std::int32_t slot = 0; slot < shape_.slots; ++slot) add(shape_.rank_of_slot(slot), map[at(slot)]);
}

double Placement::square_sum() const {
  // Sum over ranks of <R_g - mean, R_g>, which is that of the squared differences since they sum to zero.
  double sum = 0;
  for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
    const std::int32_t expert = map_[at(slot)];
    sum += static_cast<double>(product(shape_.rank_of_slot(slot), expert) * share(expert));
  }
  return sum;
}

void Placement::add_load(std::int32_t rank, std::int32_t expert, float factor) {
  kernels().add_scaled(products_.data() + row(rank), loads_->gram_row(expert), factor, padded_);
}

void Placement::hold(std::int32_t rank, std::int32_t expert, bool held) {
  penalties_[row(rank) + at(expert)] = held ? kForbidden : price(rank, expert);
}

std::int32_t Placement::add(std::int32_t rank, std::int32_t expert) {
  std::int32_t slot = rank * shape_.slots_per_rank();
  while (map_[at(slot)] >= 0) ++slot;
  TRIMTAB_CHECK(shape_.rank_of_slot(slot) == rank && !holds(rank, expert));
  map_[at(slot)] = expert;
  --free_[at(rank)];
  hold(rank, expert, true);
  add_load(rank, expert, share(expert));
  return slot;
}

void Placement::swap(std::int32_t slot_a, std::int32_t slot_b) {
  const std::int32_t a = map_[at(slot_a)], b = map_[at(slot_b)];
  const std::int32_t i = shape_.rank_of_slot(slot_a), j = shape_.rank_of_slot(slot_b);
  add_load(i, a, -share(a));
  add_load(i, b, share(b));
  add_load(j, b, -share(b));
  add_load(j, a, share(a));
  hold(i, a, false);
  hold(i, b, true);
  hold(j, b, false);
  hold(j, a, true);
  std::swap(map_[at(slot_a)], map_[at(slot_b)]);
}

std::int32_t Placement::move(std::int32_t slot, std::int32_t rank) {
  const std::int32_t expert = map_[at(slot)], from = shape_.rank_of_slot(slot);
  map_[at(slot)] = -1;
  ++free_[at(from)];
  hold(from, expert, false);
  add_load(from, expert, -share(expert));
  return add(rank, expert);
}

double Placement::replace_delta(std::int32_t slot, std::int32_t expert) const {
  const std::int32_t gone = map_[at(slot)], here = shape_.rank_of_slot(slot);
  const float less = 1.0F / static_cast<float>(copies(gone) - 1) - share(gone);
  const float more = 1.0F / static_cast<float>(copies(expert) + 1) - share(expert);
  const float gone_square = gram(gone, gone), new_square = gram(expert, expert);
  const float cross = gram(gone, expert);
  double delta = 0;
  for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
    float x = holds(rank, gone) ? less : 0.0F, y = holds(rank, expert) ? more : 0.0F;
    if (rank == here) {
      x = -share(gone);
      y = 1.0F / static_cast<float>(copies(expert) + 1);
    }
    if (x == 0.0F && y == 0.0F) continue;
    delta += static_cast<double>(2 * (x * product(rank, gone) + y * product(rank, expert)) +
                                 x * x * gone_square + y * y * new_square + 2 * x * y * cross);
  }
  return delta;
}

void Placement::replace(std::int32_t slot, std::int32_t expert) {
  const std::int32_t gone = map_[at(slot)], here = shape_.rank_of_slot(slot);
  const float less = 1.0F / static_cast<float>(copies(gone) - 1) - share(gone);
  const float more = 1.0F / static_cast<float>(copies(expert) + 1) - share(expert);
  for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
    if (rank != here && holds(rank, gone)) add_load(rank, gone, less);
    if (rank != here && holds(rank, expert)) add_load(rank, expert, more);
  }
  add_load(here, gone, -share(gone));
  add_load(here, expert, 1.0F / static_cast<float>(copies(expert) + 1));
  hold(here, gone, false);
  hold(here, expert, true);
  map_[at(slot)] = expert;
  shares_[at(gone)] = 1.0F / static_cast<float>(--copies_[at(gone)]);
  shares_[at(expert)] = 1.0F / static_cast<float>(++copies_[at(expert)]);
}

}  // namespace trimtab::experts
